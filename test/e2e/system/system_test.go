//go:build e2e

package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/fswalk"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/test/testkit/workdir"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// binary returns the path of the lighter binary under test.
func binary(t testing.TB) string {
	t.Helper()
	path, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a site and pushes images to its registry. The hub also has the images with the
// prefix "+".
func start(t testing.TB, options site.Options, images ...string) *site.Site {
	t.Helper()
	options.Lighter = binary(t)
	var others []string
	for _, image := range images {
		if name, ingested := strings.CutPrefix(image, "+"); ingested {
			options.Ingested = append(options.Ingested, name)
		} else {
			others = append(others, name)
		}
	}
	s := sitetest.Start(t, options)
	work, err := workdir.Path()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range others {
		if err := s.Push(t.Context(), filepath.Join(work, "images", name), name); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func ctr(t testing.TB, s *site.Site, args ...string) string {
	t.Helper()
	out, err := s.Machine.Ctr(t.Context(), args...)
	if err != nil {
		t.Fatalf("ctr %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func pull(t testing.TB, s *site.Site, snapshotter, name string) {
	t.Helper()
	if _, err := s.Machine.Pull(t.Context(), snapshotter, site.Reference(name)); err != nil {
		t.Fatal(err)
	}
}

// run runs a container of a pulled image, and returns its output.
func run(t testing.TB, s *site.Site, snapshotter, name string, argv ...string) string {
	t.Helper()
	ran, err := s.Machine.Run(t.Context(), snapshotter, site.Reference(name), argv...)
	if err != nil {
		t.Fatal(err)
	}
	return ran.Output
}

// A lazy pull downloads no layer, the container runs, and it fetches only the chunks that it reads.
func TestPullIsLazy(t *testing.T) {
	s := start(t, site.Options{}, "+python")
	pulled := images.Received(t, s, func() { pull(t, s, site.Lighter, "python") })
	if pulled > 3<<20 {
		t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", pulled)
	}
	for _, line := range strings.Split(ctr(t, s, "content", "ls"), "\n") {
		if strings.Contains(line, "MB") || strings.Contains(line, "MiB") {
			t.Errorf("containerd's content store has a layer: %s", line)
		}
	}
	moved := images.Received(t, s, func() {
		if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" {
			t.Errorf("python printed %q, want hello", out)
		}
	})
	if moved > 10<<20 {
		t.Errorf("the first run of python received %d bytes, want at most 10 MiB", moved)
	}
	again := images.Received(t, s, func() { run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`) })
	if again > moved/20 {
		t.Errorf("the second run received %d bytes, want at most a twentieth of the first run's %d", again, moved)
	}
	st := sitetest.Status(t, s)
	if len(st.Mounts) != 1 || len(st.Images) == 0 || st.Cache.Chunks == 0 {
		t.Errorf("the status: %+v, want one mount, an image, and cached chunks", st)
	}
	for _, e := range st.Images {
		if !e.Lazy {
			t.Errorf("chain %s is not lazy: %s", e.Chain, e.Why)
		}
	}
}

// A container on Lighter has the same entries and bytes as a container on overlayfs.
func TestContainerSeesTheSameFiles(t *testing.T) {
	s := start(t, site.Options{}, "+base", "+python")
	for _, name := range []string{"base", "python"} {
		began := time.Now().Unix()
		pull(t, s, site.Overlayfs, name)
		pull(t, s, site.Lighter, name)
		var listings [2]fswalk.Listing
		for i, snapshotter := range []string{site.Overlayfs, site.Lighter} {
			c, err := s.Machine.StartContainer(t.Context(), snapshotter, site.Reference(name), "sleep", "infinity")
			if err != nil {
				t.Fatal(err)
			}
			if listings[i], err = fswalk.Walk(view(t, c)); err != nil {
				t.Fatal(err)
			}
			if err := c.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(listings[0]) < 5000 {
			t.Fatalf("%s: found only %d entries on overlayfs, want at least 5000", name, len(listings[0]))
		}
		// containerd gives some directories the time of unpacking: the root, and directories in
		// which a layer changes files without an entry for the directory itself.
		unpacked := func(path string, a, _ fswalk.Entry) bool { return !a.IsDir() || a.Sec < began }
		for i, d := range fswalk.Diff(listings[0], listings[1], fswalk.Options{ComparesTime: unpacked}) {
			if t.Errorf("%s: %s", name, d); i > 20 {
				break
			}
		}
		fsck(t, s)
		ctr(t, s, "images", "rm", "--sync", site.Reference(name))
	}
}

// view mounts a container's root again, without its writable layer.
func view(t testing.TB, c *site.Container) string {
	t.Helper()
	root, unmount, err := c.View(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return root
}

// fsck checks each metadata image on the machine with fsck.erofs.
func fsck(t testing.TB, s *site.Site) {
	t.Helper()
	images, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*/metadata"))
	if err != nil || len(images) == 0 {
		t.Fatalf("found no metadata image (%v), want some", err)
	}
	for _, image := range images {
		if out, err := exec.Command("fsck.erofs", "--device=/dev/zero", image).CombinedOutput(); err != nil {
			t.Errorf("fsck.erofs %s: %v: %s", image, err, out)
		}
	}
}

// An image that the hub does not know is pulled and run as an ordinary image.
func TestUnknownImage(t *testing.T) {
	s := start(t, site.Options{}, "base")
	moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "base") })
	if moved < 30<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	if out := run(t, s, site.Lighter, "base", "echo", "hello"); out != "hello\n" {
		t.Errorf("echo printed %q, want hello", out)
	}
	st := sitetest.Status(t, s)
	if len(st.Mounts) != 0 || len(st.Images) == 0 || st.Images[0].Lazy || st.Images[0].Why == "" {
		t.Errorf("the status: %+v, want no mounts, and an image that is not lazy, with the reason", st)
	}
	if d := details(t, s, "base:latest"); d.Lazy || !strings.Contains(d.Why, "the hub knows no image with manifest") ||
		!d.Tree.IsZero() {
		t.Errorf("status of the image: %+v, want no tree, because the hub does not know the manifest", d)
	}
}

// left lists what a node keeps for images and containers: files of trees, chains and snapshots,
// devices, and mounts. It does not list the cache.
func left(t testing.TB, s *site.Site) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"trees/*", "mounts/*", "devices/*", "chains/*", "snapshots/[0-9]*"} {
		names, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, s.Dir) && strings.Contains(line, " erofs ") {
			found = append(found, line)
		}
	}
	return found
}

// When all images are removed, the node keeps no files and mounts for them.
func TestRemovingLeavesNothing(t *testing.T) {
	s := start(t, site.Options{}, "+base", "+python")
	for _, name := range []string{"base", "python"} {
		pull(t, s, site.Lighter, name)
		run(t, s, site.Lighter, name, "ls", "/")
	}
	if len(left(t, s)) == 0 {
		t.Fatal("no files and mounts before the removal, want some")
	}
	for _, name := range []string{"python", "base"} {
		if err := s.Machine.RemoveImage(t.Context(), site.Reference(name)); err != nil {
			t.Fatal(err)
		}
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("files and mounts after the removal, want none:\n%s", strings.Join(found, "\n"))
	}
}

// `lighter mount` mounts an image on the running node, or without it if --root names another root.
func TestMountCommand(t *testing.T) {
	s := start(t, site.Options{}, "+base")
	images, err := s.Hub.Lighter(t.Context(), "images", "--json")
	if err != nil {
		t.Fatal(err)
	}
	name := between(images, `"name": "`, `"`)
	for _, ownRoot := range []bool{false, true} {
		dir := t.TempDir()
		args := []string{"--hub", s.Hub.URL, "--hub-key", s.Hub.Key, "--plain-http"}
		if ownRoot {
			args = append(args, "--root", t.TempDir())
		} else {
			args = append(args, "--root", s.Machine.NodeRoot())
		}
		mount := append(append([]string{binary(t), "mount"}, args...), name, dir)
		if out, err := s.Machine.Command(t.Context(), mount...); err != nil {
			t.Fatalf("lighter mount: %v: %s", err, out)
		}
		b, err := os.ReadFile(filepath.Join(dir, "etc/debian_version"))
		if err != nil || !strings.HasPrefix(string(b), "12") {
			t.Errorf("/etc/debian_version in the mount: %q (%v), want \"12\" at its beginning", b, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err == nil {
			t.Error("a file was written into the mount, want an error")
		}
		if out, err := s.Machine.Command(t.Context(), binary(t), "unmount", "--root", s.Machine.NodeRoot(),
			dir); err != nil {
			t.Fatalf("lighter unmount: %v: %s", err, out)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("after lighter unmount the directory has %v (%v), want it empty", entries, err)
		}
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("files and mounts after the removal, want none:\n%s", strings.Join(found, "\n"))
	}
}

// between returns the text between the first occurrence of before and the next one of after.
func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}

// No snapshot is lost when the node is killed and started again. A container that starts afterwards
// fetches almost nothing.
func TestNodeRestart(t *testing.T) {
	s := start(t, site.Options{}, "+base")
	pull(t, s, site.Lighter, "base")
	run(t, s, site.Lighter, "base", "echo", "hello")
	before := ctr(t, s, "snapshots", "--snapshotter", site.Lighter, "ls")
	s.Machine.KillNode()
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	var after string
	for range 100 { // containerd dials again after a pause of up to three seconds
		var err error
		if after, err = s.Machine.Ctr(t.Context(), "snapshots", "--snapshotter", site.Lighter, "ls"); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if after != before {
		t.Errorf("snapshots after the restart:\n%s\nwant the same as before:\n%s", after, before)
	}
	moved := images.Received(t, s, func() {
		if out := run(t, s, site.Lighter, "base", "echo", "hello"); out != "hello\n" {
			t.Errorf("echo printed %q, want hello", out)
		}
	})
	if moved > 300<<10 {
		t.Errorf("the second container received %d bytes, want at most 300 KiB: its chunks are cached", moved)
	}
}
