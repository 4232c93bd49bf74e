//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"lighter/test/testkit/cluster"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/systemd"
)

// plain is a configuration of containerd for pods, without Lighter.
const plain = "version = 3\n\n[plugins.\"io.containerd.cri.v1.images\"]\n"

// fleet is a cluster whose machine has systemd, which runs containerd. Lighter is not installed.
type fleet struct {
	env
	manager *systemd.Manager
	dir     string // of our kustomizations
}

// usual is where a containerd has its socket on most machines.
const usual = "/run/containerd/containerd.sock"

func startFleet(t *testing.T) *fleet {
	t.Helper()
	s := startSite(t, site.Options{Config: withPods(t, plain)})
	f := &fleet{dir: t.TempDir()}
	var err error
	if err = errors.Join(s.Machine.StopNode(), s.Machine.StopContainerd()); err != nil {
		t.Fatal(err)
	}
	if f.manager, err = systemd.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.manager.Stop(), s.Machine.StartContainerd(contextOf(t))); err != nil {
			t.Error(err)
		}
	})
	unit := "[Install]\nWantedBy=multi-user.target\n[Service]\nType=notify\nDelegate=yes\nKillMode=process\n" +
		"ExecStart=" + strings.Join(s.Machine.ContainerdCommand(), " ") + "\n"
	if err := errors.Join(os.WriteFile(systemd.Units+"/containerd.service", []byte(unit), 0o644),
		os.WriteFile(systemd.Units+"/multi-user.target", []byte("[Unit]\nDescription=all services\n"), 0o644),
		f.manager.Systemctl(t.Context(), "daemon-reload"),
		f.manager.Systemctl(t.Context(), "enable", "containerd.service"), f.startServices(t, s)); err != nil {
		t.Fatal(err)
	}
	f.env = startCluster(t, s)
	for release := 1; release <= 2; release++ {
		f.pushInstaller(t, f.dir, release)
	}
	return f
}

// startServices makes systemd start all services that are enabled, in its order.
func (f *fleet) startServices(t *testing.T, s *site.Site) error {
	return errors.Join(f.manager.Systemctl(t.Context(), "start", "multi-user.target"),
		os.MkdirAll(filepath.Dir(usual), 0o755), os.Symlink(s.Machine.ContainerdSocket(), usual))
}

// pushInstaller makes an image of the installer with a program of its own, as `make image` does,
// and gives it to registry and hub. So a later pod of the daemon set is lazy itself.
func (e env) pushInstaller(t *testing.T, dir string, release int) {
	t.Helper()
	binary, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("lighter-%d", release)
	path := filepath.Join(dir, name)
	// What follows an executable's end does not matter.
	if err := os.WriteFile(path, append(program, name...), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", "../../../deploy/image", "kubernetes", path+".image",
		"latest", "1", runtime.GOARCH+"="+path).CombinedOutput()
	if err != nil {
		t.Fatalf("make the image %s: %v: %s", name, err, out)
	}
	if err := errors.Join(e.s.Push(t.Context(), path+".image", name), e.s.Hub.Add(t.Context(), name)); err != nil {
		t.Fatal(err)
	}
}

// kustomize returns a directory with the manifests of deploy/kubernetes, completed as a user does.
func (f *fleet) kustomize(t *testing.T, manifests string, release int) (dir string) {
	t.Helper()
	dir = filepath.Join(f.dir, fmt.Sprintf("%s-%d", manifests, release))
	source, err := filepath.Abs("../../../deploy/kubernetes/" + manifests)
	if err != nil {
		t.Fatal(err)
	}
	if source, err = filepath.Rel(dir, source); err != nil {
		t.Fatal(err)
	}
	image := strings.TrimSuffix(site.Reference(fmt.Sprintf("lighter-%d", release)), ":latest")
	add := func(path string, value any) string {
		text, err := json.Marshal([]object{{"op": "add", "path": "/spec/template/spec/" + path, "value": value}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	k := object{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{source},
		// The manifests of the removal name an image already, which a user edits.
		"images": []object{{"name": "lighter", "newName": image, "newTag": "latest"},
			{"name": "registry.example.org/lighter", "newName": image, "newTag": "latest"}},
		"patches": []object{
			{"target": object{"kind": "DaemonSet"}, "patch": add("containers/0/args/-", "--every=1s")},
			{"target": object{"kind": "Job"}, "patch": add("hostNetwork", true)}}} // the cluster has no other one
	if manifests == "node" {
		k["configMapGenerator"] = []object{{"name": "lighter-node", "namespace": "lighter", "behavior": "replace",
			"files": []string{"node.toml"}}}
	}
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("root = '%s'\nhubs = ['%s']\nhub_keys = ['%s']\nplain_http = true\ndisk_free_low = '0'\n",
		f.s.Machine.NodeRoot(), f.s.Hub.URL, f.s.Hub.Key)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "node.toml"), []byte(config), 0o644),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// config returns the configuration of containerd.
func (f *fleet) config(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(f.s.Machine.ContainerdConfig())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// files returns what the machine has of Lighter: the configuration of containerd, and the names of
// all files where something is installed.
func (f *fleet) files(t *testing.T) string {
	t.Helper()
	all := f.config(t)
	for _, dir := range []string{"/opt", systemd.Units, "/etc/lighter"} {
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				all += path + "\n"
			} else if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// node returns what a path of JSONPath has in the node's object.
func (f *fleet) node(t *testing.T, path string) string {
	t.Helper()
	return f.get(t, "node/"+cluster.Node, path)
}

// condition is the path of a field of the condition LighterReady.
func condition(field string) string {
	return `{.status.conditions[?(@.type=="LighterReady")].` + field + `}`
}

// awaitReason waits until the condition LighterReady has a reason.
func (f *fleet) awaitReason(t *testing.T, want string) {
	t.Helper()
	var last string
	defer func() {
		if !strings.HasPrefix(last, want+" ") {
			t.Log(last, f.kubectl(t, "", "-n", "lighter", "describe", "pods"), f.kubectl(t, "", "-n", "lighter",
				"logs", "--tail=50", "--prefix", "-l", "app.kubernetes.io/name=lighter"))
		}
	}()
	await(t, "the condition's reason "+want, func() bool {
		last = f.node(t, condition("reason")+" "+condition("message"))
		return strings.HasPrefix(last, want+" ")
	})
}

// rollOut applies the daemon set with a release of Lighter, and waits until its pods are ready.
func (f *fleet) rollOut(t *testing.T, release int) {
	t.Helper()
	f.kubectl(t, "", "apply", "-k", f.kustomize(t, "node", release))
	f.awaitRollOut(t)
}

func (f *fleet) awaitRollOut(t *testing.T) {
	t.Helper()
	f.kubectl(t, "", "-n", "lighter", "rollout", "status", "daemonset/lighter-node", "--timeout="+limit.String())
	f.awaitReason(t, "Ready")
}

var readers = []string{"reader-1", "reader-2"}

// undisturbed checks that all readers still read, and that every byte is right.
func (f *fleet) undisturbed(t *testing.T, after string) {
	t.Helper()
	for _, name := range readers {
		f.reads(t, name)
	}
	t.Logf("%s: the readers read on", after)
}

// The daemon set installs Lighter as a service of the machine, and the cluster sees it. Images are
// preheated. After a power cut the pods come back. Then the daemon set is upgraded, evicted and
// removed, and what it has installed is lost, under pods that read all the time. No pod is
// disturbed, and in the end the machine is what it was.
func TestDaemonSet(t *testing.T) {
	f := startFleet(t)
	before, config := f.files(t), f.config(t)
	f.kubectl(t, "", "taint", "node", cluster.Node, "lighter/not-ready=:NoSchedule")
	f.apply(t, pod("tainted", spec("Never", "cd / && "+pods.CheckPackage)))
	f.rollOut(t, 1)
	f.installed(t)
	f.preheated(t)
	f.rebooted(t)
	for _, name := range readers {
		f.reader(t, name)
	}
	f.upgraded(t)
	f.evicted(t)
	f.lost(t, config)
	f.removed(t, before)
}

// installed checks what the cluster sees of an installation.
func (f *fleet) installed(t *testing.T) {
	if got := f.node(t, "{.metadata.labels.lighter/ready} {.metadata.labels.lighter/installed} "+
		condition("status")+" {.spec.taints}"); got != "true true True " {
		t.Errorf("the node has labels, condition and taints %q, want that it is ready, and no taint", got)
	}
	f.awaitPod(t, "tainted", "Succeeded")
	f.kubectl(t, "", "delete", "pod/tainted")
	await(t, "the annotation about images", func() bool {
		return strings.Contains(f.node(t, `{.metadata.annotations.lighter/images}`), " lazy, 0 not")
	})
	events := f.kubectl(t, "", "get", "events", "--field-selector", "involvedObject.kind=Node,reason=Installed",
		"-o", "jsonpath={.items[*].message}")
	if !strings.Contains(events, "lighter-node.service") {
		t.Errorf("got the events %q, want one about the installation", events)
	}
	if st := f.status(t); len(st.Images) != 1 || st.Images[0].Image != python || !st.Images[0].Lazy {
		t.Errorf("the node has the images %+v, want %s, lazy", st.Images, python)
	}
}

// upgraded upgrades the daemon set.
func (f *fleet) upgraded(t *testing.T) {
	f.rollOut(t, 2)
	program, err := filepath.EvalSymlinks("/opt/lighter/bin/lighter")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil || !strings.HasSuffix(string(text), "lighter-2") {
		t.Errorf("the machine has %s (%v), want the second release", program, err)
	}
	f.undisturbed(t, "after the upgrade")
}

// evicted evicts the daemon set's pod.
func (f *fleet) evicted(t *testing.T) {
	const labels = "app.kubernetes.io/component=node"
	name := f.kubectl(t, "", "-n", "lighter", "get", "pod", "-l", labels, "-o", "jsonpath={.items[0].metadata.name}")
	f.kubectl(t, fmt.Sprintf(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q}}`, name),
		"create", "--raw", "/api/v1/namespaces/lighter/pods/"+name+"/eviction", "-f", "-")
	f.kubectl(t, "", "-n", "lighter", "wait", "--for=delete", "pod/"+name, "--timeout="+limit.String())
	f.awaitRollOut(t)
	f.undisturbed(t, "after the eviction")
}

// lost takes parts of the installation away, and waits until they are back. config is that of
// containerd before the installation.
func (f *fleet) lost(t *testing.T, config string) {
	unit := systemd.Units + "/lighter-node.service"
	if err := errors.Join(f.manager.Systemctl(t.Context(), "stop", "lighter-node.service"), os.Remove(unit),
		f.manager.Systemctl(t.Context(), "daemon-reload")); err != nil {
		t.Fatal(err)
	}
	await(t, "the unit's return", func() bool { _, err := os.Stat(unit); return err == nil })
	f.awaitReason(t, "Ready")
	f.undisturbed(t, "after the loss of the unit")

	installed := f.config(t)
	if err := errors.Join(os.WriteFile(f.s.Machine.ContainerdConfig(), []byte(config), 0o644),
		f.manager.Systemctl(t.Context(), "restart", "containerd.service")); err != nil {
		t.Fatal(err)
	}
	await(t, "the return of containerd's lines", func() bool { return f.config(t) == installed })
	f.apply(t, pod("again", spec("Never", "cd / && "+pods.CheckPackage)))
	f.awaitPod(t, "again", "Succeeded")
	f.kubectl(t, "", "delete", "pod/again")
	f.undisturbed(t, "after the loss of containerd's lines")
}

// removed removes the daemon set, and then Lighter. It waits for the readers, which are deleted
// last.
func (f *fleet) removed(t *testing.T, before string) {
	f.kubectl(t, "", "delete", "-k", f.kustomize(t, "node", 2))
	f.undisturbed(t, "after the removal of the daemon set")
	uninstall := f.kustomize(t, "uninstall", 2)
	f.kubectl(t, "", "apply", "-k", uninstall)
	f.awaitReason(t, "InUse")
	if got := f.node(t, condition("message")+"{.metadata.labels.lighter/ready}"); !strings.Contains(got, readers[0]) ||
		!strings.Contains(got, readers[1]) || strings.HasSuffix(got, "true") {
		t.Errorf("the condition says %q, want both readers, and the label is gone", got)
	}
	f.undisturbed(t, "while the removal waits")
	f.apply(t, pod("whole", spec("Never", "cd / && "+pods.CheckPackage)))
	f.awaitPod(t, "whole", "Succeeded")
	f.undisturbed(t, "after a pod without Lighter")
	f.kubectl(t, "", "delete", "pod", readers[0], readers[1], "whole")
	f.kubectl(t, "", "-n", "lighter", "wait", "--for=condition=Complete", "job/lighter-uninstall",
		"--timeout="+limit.String())
	await(t, "the removal of all files", func() bool { return f.files(t) == before })
	if got := f.node(t, "{.metadata.labels.lighter/installed}{.metadata.annotations.lighter/images}"+
		condition("status")); got != "" {
		t.Errorf("the node still has %q", got)
	}
	if f.manager.Systemctl(t.Context(), "is-active", "lighter-node.service") == nil {
		t.Error("the service still runs")
	}
	f.kubectl(t, "", "delete", "-k", uninstall)
}
