//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lighter/format/index"
	"lighter/test/testkit/cluster"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/wire/client"
)

const (
	hubs   = "lighter-hub" // the namespace, and the name of the objects
	hubURL = "http://" + site.MachineIP + ":7070"
	token  = "0123456789abcdef0123456789abcdef"
)

// inCluster is a cluster that runs a hub by the manifests of deploy/kubernetes/hub/single. Its pods
// do not need the machine's node: the kubelet pulls with overlayfs.
type inCluster struct {
	env
	dir string
}

// The manifests of a hub run in a real cluster: its pod becomes ready by its probes, and makes and
// serves an image at the endpoint of its Service. While the pod is replaced, reads wait, and the
// volume keeps everything. What needs PostgreSQL and S3, and all objects of the charts, pass the
// validation and defaults of the real API server.
//
// A cluster of one machine has no kube-proxy: the test takes the address from the Service's
// endpoints, and the pod has the machine's network. The volume is a directory of the machine.
func TestHub(t *testing.T) {
	text := strings.Replace(config(t), "    snapshotter = \"lighter\"\n", "    snapshotter = \"overlayfs\"\n", 1)
	h := &inCluster{startCluster(t, startSite(t, site.Options{Config: text})), t.TempDir()}
	h.pushInstaller(t, h.dir, 1)
	h.runs(t)
	h.serves(t)
	h.replaced(t)
	h.accepted(t)
}

// runs applies the manifests, and waits until the hub is ready.
func (h *inCluster) runs(t *testing.T) {
	volume := filepath.Join(h.s.Dir, "volume")
	if err := errors.Join(os.Mkdir(volume, 0o700),
		os.WriteFile(filepath.Join(h.dir, "token"), []byte(token), 0o600)); err != nil {
		t.Fatal(err)
	}
	h.apply(t, object{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": object{"name": "volume"},
		"spec": object{"capacity": object{"storage": "200Gi"}, "accessModes": []string{"ReadWriteOnce"},
			"local": object{"path": volume},
			"nodeAffinity": object{"required": object{"nodeSelectorTerms": []object{{"matchExpressions": []object{
				{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{cluster.Node}}}}}}}}})
	h.kubectl(t, "", "create", "namespace", hubs)
	h.kubectl(t, "", "-n", hubs, "create", "secret", "generic", hubs, "--from-literal=token="+token)
	registry, _, _ := strings.Cut(python, "/")
	h.kubectl(t, "", "apply", "-k", h.kustomize(t, "single",
		fmt.Sprintf("[[registry]]\nhost = %q\nprivate = true\nplain_http = true\n", registry)))
	defer func() {
		if t.Failed() {
			t.Log(h.kubectl(t, "", "-n", hubs, "describe", "pods,persistentvolumeclaims"),
				h.kubectl(t, "", "-n", hubs, "logs", "--tail=50", "--prefix", "-l", "app.kubernetes.io/name="+hubs))
		}
	}()
	await(t, "the hub's readiness", func() bool { return h.endpoint(t) != "" })
	if got, want := h.endpoint(t), site.MachineIP+":7070"; got != want {
		t.Fatalf("the Service leads to %s, want %s", got, want)
	}
	h.kubectl(t, "", "-n", hubs, "rollout", "status", "statefulset/"+hubs, "--timeout="+limit.String())
}

// endpoint returns the address and port that the Service leads to, or "".
func (h *inCluster) endpoint(t *testing.T) string {
	t.Helper()
	var slices struct {
		Items []struct {
			Endpoints []struct {
				Addresses  []string
				Conditions struct{ Ready bool }
			}
			Ports []struct {
				Name string
				Port int
			}
		}
	}
	out := h.kubectl(t, "", "-n", hubs, "get", "endpointslices", "-l", "kubernetes.io/service-name="+hubs, "-o", "json")
	if err := json.Unmarshal([]byte(out), &slices); err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			for _, p := range s.Ports {
				if e.Conditions.Ready && p.Name == "hub" {
					return net.JoinHostPort(e.Addresses[0], strconv.Itoa(p.Port))
				}
			}
		}
	}
	return ""
}

// kustomize returns a directory that completes a variant of the hub's manifests as a user does,
// with lines at the end of hub.toml.
func (h *inCluster) kustomize(t *testing.T, variant, lines string) (dir string) {
	t.Helper()
	dir = filepath.Join(h.dir, variant)
	base, err := filepath.Abs("../../../deploy/kubernetes/hub")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(base, variant, "hub.toml"))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string {
		relative, err := filepath.Rel(dir, filepath.Join(base, name))
		if err != nil {
			t.Fatal(err)
		}
		return relative
	}
	k := object{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": hubs,
		"resources": []string{at(variant)},
		"images": []object{{"name": "lighter", "newName": strings.TrimSuffix(site.Reference("lighter-1"), ":latest"),
			"newTag": "latest"}},
		"configMapGenerator": []object{{"name": hubs, "behavior": "replace", "files": []string{"hub.toml"}}},
		// The cluster has no other network.
		"patches": []object{{"target": object{"kind": "StatefulSet"},
			"patch": `[{"op": "add", "path": "/spec/template/spec/hostNetwork", "value": true}]`}}}
	if variant == "several" {
		k["components"] = []string{at("ingress"), at("networkpolicy"), at("tls")}
	}
	file, err := json.Marshal(k)
	if err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "hub.toml"), append(text, lines...), 0o644),
			os.WriteFile(filepath.Join(dir, "kustomization.yaml"), file, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// lighter runs a command against the hub, as an administrator.
func (h *inCluster) lighter(t *testing.T, args ...string) string {
	t.Helper()
	binary, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, append(args, "--hub", hubURL, "--plain-http", "--token-file",
		filepath.Join(h.dir, "token"))...).CombinedOutput()
	if err != nil {
		t.Fatalf("lighter %s: %v: %s", args[0], err, out)
	}
	return string(out)
}

// serves makes the hub ingest an image, which the machine's node then serves to a container.
func (h *inCluster) serves(t *testing.T) {
	h.lighter(t, "add", "--source-plain-http", "docker://"+python, "python:latest")
	c, err := client.New(client.Options{URL: hubURL, PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := c.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.s.UseHub(&site.Hub{URL: hubURL, Key: index.FormatKey(keys[0])})
	if err := errors.Join(h.s.Machine.StopNode(), h.s.Machine.StartNode(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := h.s.Machine.Pull(t.Context(), site.Lighter, python); err != nil {
		t.Fatal(err)
	}
	if st := sitetest.Status(t, h.s); len(st.Images) != 1 || !st.Images[0].Lazy || len(st.Hubs) != 1 ||
		st.Hubs[0].URL != hubURL {
		t.Errorf("the node has images %+v of hubs %+v, want one, lazy, of %s", st.Images, st.Hubs, hubURL)
	}
}

// replaced restarts the hub's pod while a container reads what the node does not have yet.
func (h *inCluster) replaced(t *testing.T) {
	c, err := h.s.Machine.StartContainer(t.Context(), site.Lighter, python, "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	answers := func() bool {
		conn, err := net.DialTimeout("tcp", site.MachineIP+":7070", time.Second)
		return err == nil && conn.Close() == nil
	}
	h.kubectl(t, "", "-n", hubs, "rollout", "restart", "statefulset/"+hubs)
	await(t, "the end of the hub's process", func() bool { return !answers() })
	const all = "cd / && cat var/lib/dpkg/info/*.md5sums | md5sum --check --quiet --ignore-missing -"
	began := time.Now()
	if out, err := c.Exec(t.Context(), "sh", "-ec", all); err != nil {
		t.Errorf("reads while the hub is replaced: %v: %s", err, out)
	}
	t.Logf("reads took %v while the hub was replaced", time.Since(began).Round(time.Millisecond))
	h.kubectl(t, "", "-n", hubs, "rollout", "status", "statefulset/"+hubs, "--timeout="+limit.String())
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if out := h.lighter(t, "images"); !strings.Contains(out, "python:latest") {
		t.Errorf("after the restart, the hub has %s, want python:latest", out)
	}
}

// accepted lets the API server examine the manifests of several hubs, and all objects of the
// charts. The cluster has no Prometheus operator, whose objects are left out. The hub that runs is
// removed first, because its objects have the same names.
func (h *inCluster) accepted(t *testing.T) {
	h.kubectl(t, "", "delete", "-k", filepath.Join(h.dir, "single"))
	dry := []string{"apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"}
	h.kubectl(t, "", append(dry, "-k", h.kustomize(t, "several", ""))...)
	h.kubectl(t, "", "create", "namespace", "lighter")
	for _, chart := range []struct{ dir, values string }{
		{hubs, ""},
		{hubs, "replicas: 2\ndatabase: postgres://lighter@db.example.org/lighter\nbucket: s3://lighter\n" +
			"tls: {secretName: x}\ningress: {enabled: true}\nnetworkPolicy: {enabled: true}\n" +
			"dashboard: {enabled: true}\n"},
		{"lighter", "config: |\n  hubs = ['https://hub.example.org']\n  hub_keys = ['" + h.s.Hub.Key + "']\n"},
	} {
		out := h.kubectl(t, h.chart(t, chart.dir, chart.values), append(dry, "-f", "-")...)
		t.Logf("the API server accepts %d objects of the chart %s", strings.Count(out, "\n"), chart.dir)
	}
}

// chart renders a chart with Helm's library.
func (h *inCluster) chart(t *testing.T, name, values string) string {
	t.Helper()
	dir, err := filepath.Abs("../../../deploy/helm/" + name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit) // it may have to be compiled
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "./helm", dir, name)
	cmd.Dir, cmd.Stdin = "../../tools/manifests", strings.NewReader(values)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("render the chart %s: %w: %s", name, err, stderr.String()))
	}
	return string(out)
}
