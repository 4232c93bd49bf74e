//go:build e2e

package system

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
)

// object is a message of CRI, as JSON.
type object = map[string]any

// pullAsKubelet pulls an image through CRI.
func pullAsKubelet(t *testing.T, s *site.Site, ref string) { pullFor(t, s, ref, "") }

// pullFor pulls an image through CRI for a runtime handler, as for a pod with a RuntimeClass.
func pullFor(t *testing.T, s *site.Site, ref, handler string) {
	t.Helper()
	var pulled struct{ ImageRef string }
	err := s.Machine.CRI(t.Context(), "PullImage", object{"image": object{"image": ref, "runtimeHandler": handler}},
		&pulled)
	if err != nil || !strings.HasPrefix(pulled.ImageRef, "sha256:") {
		t.Fatalf("CRI pull: image %q, error %v; want a digest", pulled.ImageRef, err)
	}
}

// disk is a file system as CRI reports it.
type disk struct {
	FsID      struct{ Mountpoint string }
	UsedBytes struct {
		Value int64 `json:",string"`
	}
}

// imageDisk returns the file system of images that the kubelet watches, which is the first one.
func imageDisk(t *testing.T, s *site.Site) disk {
	t.Helper()
	var info struct{ ImageFilesystems []disk }
	if err := s.Machine.CRI(t.Context(), "ImageFsInfo", object{}, &info); err != nil ||
		len(info.ImageFilesystems) == 0 {
		t.Fatalf("CRI's file systems: %+v, %v; want at least one", info, err)
	}
	return info.ImageFilesystems[0]
}

// pod is a pod sandbox that runs.
type pod struct {
	t      *testing.T
	s      *site.Site
	id     string
	config object
}

// runPod runs a pod sandbox for a runtime handler, and removes it at the end of the test. The
// namespaces are as in CRI's NamespaceOption.
func runPod(t *testing.T, s *site.Site, name, handler string, namespaces object) *pod {
	t.Helper()
	p := &pod{t: t, s: s, config: object{
		"metadata": object{"name": name, "uid": name, "namespace": "default"},
		"linux": object{"cgroupParent": "/" + s.Machine.Namespace(),
			"securityContext": object{"namespaceOptions": namespaces}}}}
	var ran struct{ PodSandboxID string }
	if err := s.Machine.CRI(t.Context(), "RunPodSandbox", object{"config": p.config, "runtimeHandler": handler},
		&ran); err != nil {
		t.Fatal(err)
	}
	p.id = ran.PodSandboxID
	t.Cleanup(p.remove)
	return p
}

// remove stops and removes the pod with its containers, as far as it exists.
func (p *pod) remove() {
	p.t.Helper()
	for _, method := range []string{"StopPodSandbox", "RemovePodSandbox"} {
		// The test's context has ended when its cleanups run. The client has a time limit.
		if err := p.s.Machine.CRI(context.Background(), method, object{"podSandboxId": p.id}, nil); err != nil {
			p.t.Error(err)
		}
	}
}

// start starts a container of an image that was pulled for the pod's runtime handler, with more
// fields of its configuration. The container runs until it is removed.
func (p *pod) start(ref string, more object) (container string) {
	p.t.Helper()
	namespaces := p.config["linux"].(object)["securityContext"]
	config := object{"metadata": object{"name": "c"}, "image": object{"image": ref},
		"command": []string{"sleep", "infinity"}, "linux": object{"securityContext": namespaces}}
	for key, value := range more {
		config[key] = value
	}
	var made struct{ ContainerID string }
	err := p.s.Machine.CRI(p.t.Context(), "CreateContainer",
		object{"podSandboxId": p.id, "config": config, "sandboxConfig": p.config}, &made)
	if err == nil {
		err = p.s.Machine.CRI(p.t.Context(), "StartContainer", object{"containerId": made.ContainerID}, nil)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return made.ContainerID
}

// exec runs a shell's script in a container and returns its output.
func (p *pod) exec(container, script string) string {
	p.t.Helper()
	var ran struct {
		Stdout, Stderr []byte
		ExitCode       int
	}
	err := p.s.Machine.CRI(p.t.Context(), "ExecSync",
		object{"containerId": container, "cmd": []string{"sh", "-ec", script}}, &ran)
	if err != nil || ran.ExitCode != 0 {
		p.t.Errorf("%s: exit code %d, %v, %s%s", script, ran.ExitCode, err, ran.Stdout, ran.Stderr)
	}
	return string(ran.Stdout)
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	const limit = time.Minute
	for end := time.Now().Add(limit); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

// podBytes is what the machine may receive for a pod whose container checks a package: a third of
// the image python.
const podBytes = 20 << 20

// onHost are the namespaces of a pod that uses its node's network.
var onHost = object{"network": "NODE"}

// A pod as the kubelet runs it is lazy: the pause image, the container's image, and the same image
// as a volume. A second pull, as with imagePullPolicy Always, fetches nothing but the manifest. The
// kubelet gets the disk of the node's root, and what containers have written. A pod with a
// RuntimeClass whose handler has another snapshotter uses that. The images can be removed.
func TestPod(t *testing.T) {
	s := start(t, site.Options{Config: pods.Config(t, shipped(t, "config-2.1.toml"), "")}, "+python")
	pods.AddPause(t, s)
	python := site.Reference("python")
	var p *pod
	var c string
	moved := received(t, s, func() {
		pullAsKubelet(t, s, pods.Pause)
		pullAsKubelet(t, s, python)
		p = runPod(t, s, "lazy", "", onHost)
		c = p.start(python, object{"mounts": []object{{"containerPath": "/volume", "readonly": true,
			"image": object{"image": python}}, {"containerPath": "/part", "readonly": true,
			"image": object{"image": python}, "imageSubPath": "usr/bin"}}})
		p.exec(c, "cd /volume && "+pods.CheckPackage+" && test -s /part/md5sum && ! touch /volume/x 2>/dev/null")
		p.exec(c, "cd / && "+pods.CheckPackage)
	})
	if moved > podBytes {
		t.Errorf("the pod received %d bytes, want at most %d", moved, podBytes)
	}
	if again := received(t, s, func() { pullAsKubelet(t, s, python) }); again > 100<<10 {
		t.Errorf("a second pull received %d bytes, want at most 100 KiB", again)
	}
	if st := status(t, s); len(st.Mounts) != 2 {
		t.Errorf("mounts: %+v, want two: the pause image, and the image of container and volume", st.Mounts)
	}
	counted(t, s, p, c)

	// The kubelet does not pull the pause image for the handler, and its layers are not there.
	pullFor(t, s, pods.Pause, "whole")
	pullFor(t, s, python, "whole")
	w := runPod(t, s, "whole", "whole", onHost)
	w.exec(w.start(python, nil), "cd / && "+pods.CheckPackage)
	if st := status(t, s); len(st.Mounts) != 2 {
		t.Errorf("mounts: %+v, want still two: the pod's handler has another snapshotter", st.Mounts)
	}

	w.remove()
	p.remove()
	for _, ref := range []string{python, pods.Pause} {
		if err := s.Machine.CRI(t.Context(), "RemoveImage", object{"image": object{"image": ref}}, nil); err != nil {
			t.Error(err)
		}
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("files and mounts after the removal, want none:\n%s", strings.Join(found, "\n"))
	}
}

// counted checks the figures that the kubelet gets about disks: the image file system is the node's
// root, and a container's writable layer has the bytes that the container has written.
func counted(t *testing.T, s *site.Site, p *pod, container string) {
	t.Helper()
	const written = 3 << 20
	p.exec(container, fmt.Sprintf("head -c %d /dev/urandom >/tmp/written", written))
	eventually(t, "the bytes that the container has written", func() bool {
		var stats struct{ Stats struct{ WritableLayer disk } }
		err := s.Machine.CRI(t.Context(), "ContainerStats", object{"containerId": container}, &stats)
		return err == nil && stats.Stats.WritableLayer.UsedBytes.Value >= written &&
			imageDisk(t, s).UsedBytes.Value >= written
	})
	if got := imageDisk(t, s).FsID.Mountpoint; got != s.Machine.NodeRoot() {
		t.Errorf("the disk that the kubelet watches: got %s, want the node's root %s", got, s.Machine.NodeRoot())
	}
}

// A pod runs on Lighter although containerd has unpacked the pause image before with another
// snapshotter, and has discarded its layers: the hub knows the image.
func TestPauseImageWithoutLayers(t *testing.T) {
	discards := strings.Replace(pods.Config(t, shipped(t, "config-2.1.toml"), "    discard_unpacked_layers = true\n"+
		"    disable_snapshot_annotations = false\n"), `snapshotter = "lighter"`,
		`snapshotter = "overlayfs"`, 1)
	s := start(t, site.Options{Config: discards}, "+python")
	pods.AddPause(t, s)
	pullAsKubelet(t, s, pods.Pause)
	eventually(t, "the removal of the unpacked layers", func() bool {
		out, err := s.Machine.CtrIn(t.Context(), "k8s.io", "content", "ls")
		return err == nil && !strings.Contains(out, "MiB") && !strings.Contains(out, "MB")
	})
	python := site.Reference("python")
	moved := received(t, s, func() {
		pullFor(t, s, python, "lazy")
		p := runPod(t, s, "lazy", "lazy", onHost)
		p.exec(p.start(python, nil), "cd / && "+pods.CheckPackage)
	})
	if moved > podBytes {
		t.Errorf("the pod received %d bytes, want at most %d", moved, podBytes)
	}
	if st := status(t, s); len(st.Mounts) != 2 {
		t.Errorf("mounts: %+v, want two: the pause image, and the container's image", st.Mounts)
	}
}

// A pod in a user namespace is lazy, and sees the owners that the image gives its files.
func TestPodInUserNamespace(t *testing.T) {
	config := strings.Replace(pods.Config(t, shipped(t, "config-2.1.toml"), ""), `capabilities = ["rebase"]`,
		`capabilities = ["rebase", "remap-ids"]`, 1)
	s := start(t, site.Options{Config: config, RemapIDs: true}, "+python")
	pods.AddPause(t, s)
	python := site.Reference("python")
	mapping := []object{{"hostId": 100000, "containerId": 0, "length": 65536}}
	moved := received(t, s, func() {
		pullAsKubelet(t, s, pods.Pause)
		pullAsKubelet(t, s, python)
		p := runPod(t, s, "mapped", "",
			object{"usernsOptions": object{"mode": "POD", "uids": mapping, "gids": mapping}})
		c := p.start(python, nil)
		if got, want := p.exec(c, "cat /proc/self/uid_map; stat -c %u:%g /etc/shadow; cd /; "+pods.CheckPackage),
			"         0     100000      65536\n0:42\n"; got != want {
			t.Errorf("the container prints %q, want %q", got, want)
		}
	})
	if moved > podBytes {
		t.Errorf("the pod received %d bytes, want at most %d", moved, podBytes)
	}
}
