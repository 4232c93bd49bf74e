//go:build e2e

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/node/front/containerd"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// podConfig returns the shipped configuration of containerd with what pods need, and the given
// lines in its section about images.
func podConfig(t *testing.T, images string) string {
	t.Helper()
	text, err := pods.Config(t.TempDir(), shipped(t, "config-2.1.toml"), images)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func addPause(t *testing.T, s *site.Site) {
	t.Helper()
	if err := pods.AddPause(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// onHost are the namespaces of a pod that uses its node's network.
var onHost = pods.Object{"network": "NODE"}

// A pod as the kubelet runs it is lazy: the pause image, the container's image, and the same image
// as a volume. A second pull, as with imagePullPolicy Always, fetches nothing but the manifest. The
// kubelet gets the disk of the node's root, and what containers have written. A pod with a
// RuntimeClass whose handler has another snapshotter uses that. The images can be removed.
func TestPod(t *testing.T) {
	s := start(t, site.Options{Config: podConfig(t, "")}, "+python")
	addPause(t, s)
	python := site.Reference("python")
	var p *pods.Pod
	var c string
	moved := images.Received(t, s, func() {
		pods.Pull(t, s, pods.Pause, "")
		pods.Pull(t, s, python, "")
		p = pods.Run(t, s, "lazy", "", onHost)
		c = p.Start(python, pods.Object{"mounts": []pods.Object{{"containerPath": "/volume", "readonly": true,
			"image": pods.Object{"image": python}}, {"containerPath": "/part", "readonly": true,
			"image": pods.Object{"image": python}, "imageSubPath": "usr/bin"}}})
		p.Exec(c, "cd /volume && "+pods.CheckPackage+" && test -s /part/md5sum && ! touch /volume/x 2>/dev/null")
		p.Exec(c, "cd / && "+pods.CheckPackage)
	})
	if moved > pods.Bytes {
		t.Errorf("the pod received %d bytes, want at most %d", moved, pods.Bytes)
	}
	if again := images.Received(t, s, func() { pods.Pull(t, s, python, "") }); again > 100<<10 {
		t.Errorf("a second pull received %d bytes, want at most 100 KiB", again)
	}
	if st := sitetest.Status(t, s); len(st.Mounts) != 2 {
		t.Errorf("mounts: %+v, want two: the pause image, and the image of container and volume", st.Mounts)
	}
	counted(t, s, p, c)

	// The kubelet does not pull the pause image for the handler, and its layers are not there.
	if _, err := s.Machine.CtrIn(t.Context(), "k8s.io", "images", "pull", "--plain-http", "--snapshotter",
		site.Overlayfs, pods.Pause); err != nil {
		t.Fatal(err)
	}
	pods.Pull(t, s, python, "whole")
	w := pods.Run(t, s, "whole", "whole", onHost)
	w.Exec(w.Start(python, nil), "cd / && "+pods.CheckPackage)
	if st := sitetest.Status(t, s); len(st.Mounts) != 2 {
		t.Errorf("mounts: %+v, want still two: the pod's handler has another snapshotter", st.Mounts)
	}
	// The removal of Lighter waits for these.
	users, err := containerd.Users(t.Context(), s.Machine.ContainerdSocket(), site.Lighter)
	if err != nil || len(users) != 2 || users[0].Container != c && users[1].Container != c {
		t.Errorf("users of the snapshotter: %+v, %v; want the container %s and its sandbox", users, err, c)
	}

	w.Remove()
	p.Remove()
	for _, ref := range []string{python, pods.Pause} {
		if err := s.Machine.CRI(t.Context(), "RemoveImage", pods.Object{"image": pods.Object{"image": ref}},
			nil); err != nil {
			t.Error(err)
		}
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("files and mounts after the removal, want none:\n%s", strings.Join(found, "\n"))
	}
}

// counted checks the figures that the kubelet gets about disks: the image file system is the node's
// root, lazy images have the bytes of their indexes, which their removal frees, and a container's
// writable layer has the bytes that the container has written.
func counted(t *testing.T, s *site.Site, p *pods.Pod, container string) {
	t.Helper()
	const written = 3 << 20
	indexes := indexBytes(t, s)
	eventually.Holds(t, "the bytes of indexes", func() bool {
		got := pods.ImageDisk(t, s).UsedBytes.Value
		return got >= indexes*9/10 && got < indexes+written // containerd may have asked before the locations came
	})
	p.Exec(container, fmt.Sprintf("head -c %d /dev/urandom >/tmp/written", written))
	eventually.Holds(t, "the bytes that the container has written", func() bool {
		var stats struct {
			Stats struct{ WritableLayer pods.Disk }
		}
		err := s.Machine.CRI(t.Context(), "ContainerStats", pods.Object{"containerId": container}, &stats)
		return err == nil && stats.Stats.WritableLayer.UsedBytes.Value >= written &&
			pods.ImageDisk(t, s).UsedBytes.Value >= written
	})
	if got := pods.ImageDisk(t, s).FsID.Mountpoint; got != s.Machine.NodeRoot() {
		t.Errorf("the disk that the kubelet watches: got %s, want the node's root %s", got, s.Machine.NodeRoot())
	}
}

// indexBytes returns the bytes of the indexes that a node has.
func indexBytes(t *testing.T, s *site.Site) (sum int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	if sum == 0 {
		t.Fatalf("the node has no index among %v", files)
	}
	return sum
}

// A pod runs on Lighter although containerd has unpacked the pause image before with another
// snapshotter, and has discarded its layers: the hub knows the image.
func TestPauseImageWithoutLayers(t *testing.T) {
	discards := strings.Replace(podConfig(t, "    discard_unpacked_layers = true\n"+
		"    disable_snapshot_annotations = false\n"), `snapshotter = "lighter"`,
		`snapshotter = "overlayfs"`, 1)
	s := start(t, site.Options{Config: discards}, "+python")
	addPause(t, s)
	pods.Pull(t, s, pods.Pause, "")
	eventually.Holds(t, "the removal of the unpacked layers", func() bool {
		out, err := s.Machine.CtrIn(t.Context(), "k8s.io", "content", "ls")
		return err == nil && !strings.Contains(out, "MiB") && !strings.Contains(out, "MB")
	})
	python := site.Reference("python")
	moved := images.Received(t, s, func() {
		pods.Pull(t, s, python, "lazy")
		p := pods.Run(t, s, "lazy", "lazy", onHost)
		p.Exec(p.Start(python, nil), "cd / && "+pods.CheckPackage)
	})
	if moved > pods.Bytes {
		t.Errorf("the pod received %d bytes, want at most %d", moved, pods.Bytes)
	}
	if st := sitetest.Status(t, s); len(st.Mounts) != 2 {
		t.Errorf("mounts: %+v, want two: the pause image, and the container's image", st.Mounts)
	}
}
