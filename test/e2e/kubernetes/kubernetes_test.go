//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/node/report"
	"lighter/test/testkit/cluster"
	"lighter/test/testkit/images"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// object is an object of the Kubernetes API, as JSON.
type object = map[string]any

// limit bounds each wait. Machines that build something else are slow.
const limit = 5 * time.Minute

var python = site.Reference("python")

// env is a cluster on a site whose hub has the images python and pause.
type env struct {
	s *site.Site
	c *cluster.Cluster
}

// startSite starts a site with a configuration of containerd that has CRI. Its hub has the images
// python and pause. It runs pods with the runc that is built for Docker: Debian's maps no owners,
// and knows no namespace of time.
func startSite(t *testing.T, options site.Options) *site.Site {
	t.Helper()
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	options.Programs = filepath.Join(site.Ours, "docker")
	if _, err := os.Stat(filepath.Join(work, options.Programs, "runc")); err != nil {
		t.Fatalf("find a newer runc (test/setup docker builds it): %v", err)
	}
	if options.Lighter, err = site.Binary(); err != nil {
		t.Fatal(err)
	}
	s := sitetest.Start(t, options)
	if err := errors.Join(s.Push(t.Context(), filepath.Join(work, "images/python"), "python"),
		s.Hub.Add(t.Context(), "python"), pods.AddPause(t.Context(), s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// config returns an administrator's configuration of containerd that has CRI and Lighter.
func config(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/containerd/config-2.1.toml")
	if err != nil {
		t.Fatal(err)
	}
	return withPods(t, string(text))
}

// withPods adds what pods need to a configuration of containerd.
func withPods(t *testing.T, text string) string {
	t.Helper()
	text, err := pods.Config(t.TempDir(), text, "")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// startCluster starts a cluster on a site.
func startCluster(t *testing.T, s *site.Site) env {
	t.Helper()
	c, err := cluster.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	e := env{s, c}
	t.Cleanup(func() {
		e.kubectl(t, "", "delete", "daemonsets,deployments,statefulsets,jobs,pods", "--all", "--all-namespaces",
			"--force", "--grace-period=0")
		e.noSandbox(t)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e env) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	// Not t.Context(), which has ended when the cleanups run.
	out, err := e.c.Kubectl(contextOf(t), input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply makes objects in the cluster.
func (e env) apply(t *testing.T, objects ...object) {
	t.Helper()
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		t.Fatal(err)
	}
	e.kubectl(t, string(text), "apply", "-f", "-")
}

// get returns what a path of JSONPath has in an object.
func (e env) get(t *testing.T, name, path string) string {
	t.Helper()
	return e.kubectl(t, "", "get", name, "-o", "jsonpath="+path)
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

// awaitPod waits until a pod has a phase.
func (e env) awaitPod(t *testing.T, name, phase string) {
	t.Helper()
	var last string
	defer func() {
		if last != phase {
			t.Logf("pod %s is %s:\n%s", name, last, e.kubectl(t, "", "describe", "pod", name))
		}
	}()
	await(t, "pod "+name+" "+phase, func() bool {
		last = e.get(t, "pod/"+name, "{.status.phase}")
		if last == "Failed" && phase != last {
			t.Fatalf("pod %s has failed: %s", name, e.kubectl(t, "", "logs", name, "--all-containers"))
		}
		return last == phase
	})
}

// noSandbox waits until containerd has no pod sandbox.
func (e env) noSandbox(t *testing.T) {
	t.Helper()
	await(t, "the removal of all pod sandboxes", func() bool {
		var list struct{ Items []any }
		err := e.s.Machine.CRI(contextOf(t), "ListPodSandbox", object{}, &list)
		return err == nil && len(list.Items) == 0
	})
}

// spec returns a pod's specification: it uses the machine's network, and runs a shell's script in a
// container of the image python.
func spec(restart, script string) object {
	return object{"hostNetwork": true, "restartPolicy": restart, "automountServiceAccountToken": false,
		"terminationGracePeriodSeconds": 0, "containers": []object{container("c", script)}}
}

func container(name, script string) object {
	return object{"name": name, "image": python, "command": []string{"sh", "-ec", script}}
}

// pod returns a pod with a specification.
func pod(name string, spec object) object {
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "labels": object{"app": name}},
		"spec": spec}
}

// received runs fn, and checks that the machine receives at most a number of bytes meanwhile. They
// include the kubelet's requests to the API server.
func (e env) received(t *testing.T, most int64, fn func()) {
	t.Helper()
	moved := images.Received(t, e.s, fn)
	t.Logf("received %d bytes", moved)
	if moved > most {
		t.Errorf("received %d bytes, want at most %d", moved, most)
	}
}

func (e env) status(t *testing.T) report.Status { t.Helper(); return sitetest.Status(t, e.s) }

// What the kubelet does works lazily: a job with an image volume, a deployment with init and
// ephemeral containers that pulls always, a runtime class, restarts of kubelet, containerd and node
// in any order while a pod reads, node drain, and image garbage collection.
func TestCluster(t *testing.T) {
	e := startCluster(t, startSite(t, site.Options{Config: config(t)}))
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"job", e.job}, {"deployment", e.deployment}, {"runtime class", e.runtimeClass}, {"restarts", e.restarts},
		{"drain", e.drain}, {"garbage collection", e.collected},
	} {
		if !t.Run(test.name, test.run) && t.Context().Err() != nil {
			return
		}
	}
}

// A job whose image is also its volume fetches little, and every byte that it reads is right.
func (e env) job(t *testing.T) {
	s := spec("Never", "cd /volume && "+pods.CheckPackage+" && cd / && "+pods.CheckPackage+
		" && python3 -c 'print(\"hello\")'")
	s["containers"].([]object)[0]["volumeMounts"] = []object{{"name": "v", "mountPath": "/volume"}}
	s["volumes"] = []object{{"name": "v", "image": object{"reference": python}}}
	e.received(t, pods.Bytes+4<<20, func() {
		e.apply(t, object{"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": "job"},
			"spec": object{"backoffLimit": 0, "template": object{"spec": s}}})
		e.kubectl(t, "", "wait", "job/job", "--for=condition=Complete", "--timeout="+limit.String())
	})
	if got := e.kubectl(t, "", "logs", "job/job"); got != "hello\n" {
		t.Errorf("the job prints %q, want hello", got)
	}
	st := e.status(t)
	for _, image := range st.Images {
		if !image.Lazy {
			t.Errorf("the image %s is not lazy: %s", image.Image, image.Why)
		}
	}
	if len(st.Images) < 2 || len(st.Mounts) == 0 {
		t.Errorf("got images %+v, mounts %+v; want those of the pause image and of python", st.Images, st.Mounts)
	}
	e.kubectl(t, "", "delete", "job/job")
	e.noSandbox(t)
}

// A deployment's pods, with an init container, start from an image that is pulled again each time,
// which fetches no chunk twice. An ephemeral container joins one of them.
func (e env) deployment(t *testing.T) {
	s := spec("Always", "cd / && "+pods.CheckPackage+" && sleep infinity")
	s["initContainers"] = []object{container("i", "test -s /usr/bin/python3")}
	for _, list := range []string{"containers", "initContainers"} {
		s[list].([]object)[0]["imagePullPolicy"] = "Always"
	}
	app := object{"app": "web"}
	e.received(t, 3<<20, func() {
		e.apply(t, object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "web"},
			"spec": object{"replicas": 2, "selector": object{"matchLabels": app},
				"template": object{"metadata": object{"labels": app}, "spec": s}}})
		e.kubectl(t, "", "rollout", "status", "deployment/web", "--timeout="+limit.String())
	})
	name := e.kubectl(t, "", "get", "pod", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	e.kubectl(t, "", "debug", name, "--image="+python, "--container=debug", "--profile=general", "--",
		"sh", "-ec", "cd / && "+pods.CheckPackage)
	const state = `{range .status.ephemeralContainerStatuses[0]}{.state.terminated.exitCode}{end}`
	await(t, "the end of the ephemeral container", func() bool { return e.get(t, "pod/"+name, state) != "" })
	if got := e.get(t, "pod/"+name, state); got != "0" {
		t.Errorf("exit code of the ephemeral container: got %s, want 0: %s", got,
			e.kubectl(t, "", "logs", name, "--container=debug"))
	}
	e.kubectl(t, "", "delete", "deployment/web")
	e.noSandbox(t)
}

// A pod with a runtime class runs in the snapshotter of the class's handler. The image is pulled
// for this handler, because the pod has containerd's annotation.
func (e env) runtimeClass(t *testing.T) {
	// The kubelet does not pull the pause image for the handler, and its layers are not there.
	pods.Pull(t, e.s, pods.Pause, "whole")
	s := spec("Never", "cd / && "+pods.CheckPackage)
	s["runtimeClassName"] = "whole"
	p := pod("whole", s)
	p["metadata"].(object)["annotations"] = object{"io.containerd.cri.runtime-handler": "whole"}
	e.apply(t, object{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": object{"name": "whole"},
		"handler": "whole"}, p)
	e.awaitPod(t, "whole", "Succeeded")
	out, err := e.s.Machine.CtrIn(t.Context(), "k8s.io", "snapshots", "--snapshotter", site.Overlayfs, "ls")
	if n := strings.Count(out, " Active"); err != nil || n != 2 {
		t.Errorf("overlayfs has %d writable snapshots (%v), want those of sandbox and container:\n%s", n, err, out)
	}
	e.kubectl(t, "", "delete", "pod/whole")
	e.noSandbox(t)
}

// readAll is a script that reads all files of Debian packages again and again, and ends if one of
// them is wrong.
const readAll = `cd /; while cat var/lib/dpkg/info/*.md5sums | md5sum --check --quiet --ignore-missing -; do
	echo round; done; echo wrong; exit 1`

// reader starts a pod that reads all the time.
func (e env) reader(t *testing.T, name string) {
	t.Helper()
	e.apply(t, pod(name, spec("Never", readAll)))
	e.awaitPod(t, name, "Running")
	e.reads(t, name)
}

// reads waits until a reader has completed two more rounds, with an empty page cache at first. So
// at least one of them began after the call.
func (e env) reads(t *testing.T, name string) {
	t.Helper()
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	rounds := func() int {
		out, err := e.c.Kubectl(t.Context(), "", "logs", name)
		if err != nil {
			return -1 // the kubelet has just been started
		}
		return strings.Count(out, "round\n")
	}
	before := -1
	await(t, "the log of the reader "+name, func() bool { before = rounds(); return before >= 0 })
	await(t, "two more rounds of the reader "+name, func() bool {
		if phase := e.get(t, "pod/"+name, "{.status.phase}"); phase != "Running" {
			t.Fatalf("the reader is %s: %s", phase, e.kubectl(t, "", "logs", name, "--tail=5"))
		}
		return rounds() >= before+2
	})
}

// A pod reads on while kubelet, containerd and node are restarted, in each order.
func (e env) restarts(t *testing.T) {
	e.reader(t, "reader")
	const id = "{.status.containerStatuses[0].containerID}"
	before := e.get(t, "pod/reader", id)
	restart := map[string]func() error{
		"kubelet":    func() error { return errors.Join(e.c.StopKubelet(), e.c.StartKubelet(t.Context(), nil)) },
		"containerd": func() error { return e.s.Machine.RestartContainerd(t.Context()) },
		"node": func() error {
			e.s.Machine.KillNode()
			return e.s.Machine.StartNode(t.Context())
		},
	}
	for _, order := range []string{"kubelet containerd node", "kubelet node containerd", "containerd kubelet node",
		"containerd node kubelet", "node kubelet containerd", "node containerd kubelet"} {
		for _, name := range strings.Fields(order) {
			if err := restart[name](); err != nil {
				t.Fatalf("restart %s: %v", name, err)
			}
		}
		e.reads(t, "reader")
		next := fmt.Sprintf("next-%s", strings.ReplaceAll(order, " ", "-"))
		e.apply(t, pod(next, spec("Never", "cd / && "+pods.CheckPackage)))
		e.awaitPod(t, next, "Succeeded")
		e.kubectl(t, "", "delete", "pod/"+next)
	}
	if after := e.get(t, "pod/reader", id); after != before {
		t.Errorf("the reader's container: got %s, want still %s", after, before)
	}
	e.kubectl(t, "", "delete", "pod/reader")
	e.noSandbox(t)
}

// A node is drained and takes pods again.
func (e env) drain(t *testing.T) {
	e.reader(t, "drained")
	e.kubectl(t, "", "drain", cluster.Node, "--force", "--ignore-daemonsets", "--timeout="+limit.String())
	e.noSandbox(t)
	e.kubectl(t, "", "uncordon", cluster.Node)
	e.reader(t, "after")
	e.kubectl(t, "", "delete", "pod/after")
	e.noSandbox(t)
}

// The kubelet watches the disk of the node's root, and what it collects leaves containerd and the
// node.
func (e env) collected(t *testing.T) {
	var summary struct {
		Node struct {
			Runtime struct {
				ImageFs struct{ CapacityBytes, UsedBytes uint64 }
			}
		}
	}
	if err := json.Unmarshal([]byte(e.kubectl(t, "", "get", "--raw",
		"/api/v1/nodes/"+cluster.Node+"/proxy/stats/summary")), &summary); err != nil {
		t.Fatal(err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(e.s.Machine.NodeRoot(), &disk); err != nil {
		t.Fatal(err)
	}
	if got, want := summary.Node.Runtime.ImageFs.CapacityBytes, disk.Blocks*uint64(disk.Bsize); got != want {
		t.Errorf("capacity of the images' disk: got %d, want %d", got, want)
	}
	images := func() int { return len(e.status(t).Images) }
	if images() < 2 {
		t.Errorf("the node has %d images before the collection, want those of the pods", images())
	}
	err := errors.Join(e.c.StopKubelet(), e.c.StartKubelet(t.Context(),
		object{"evictionHard": object{"imagefs.available": "99.9%", "nodefs.available": "99.9%"}}))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the collection of the image python", func() bool {
		out, err := e.s.Machine.CtrIn(t.Context(), "k8s.io", "images", "ls", "-q")
		return err == nil && !strings.Contains(out, python)
	})
	await(t, "the removal of its tree", func() bool { return images() < 2 })
}
