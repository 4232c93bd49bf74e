//go:build e2e

package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/node/mount"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// readAll is a shell command that prints a digest of the names and contents of nearly all files of
// the image base.
const readAll = "find /etc /opt /usr /var -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"

// reconnect waits until containerd has reconnected to the node.
func reconnect(t testing.TB, s *site.Site) {
	t.Helper()
	if err := s.Machine.Reconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// restartNode kills the node, starts it again, and waits until containerd has reconnected to it.
func restartNode(t testing.TB, s *site.Site) {
	t.Helper()
	s.Machine.KillNode()
	if err := s.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	reconnect(t, s)
}

func removeImage(t testing.TB, s *site.Site, name string) {
	t.Helper()
	if err := s.Machine.RemoveImage(t.Context(), site.Reference(name)); err != nil {
		t.Fatal(err)
	}
}

// loops lists the backing files of the site's loop devices.
func loops(t testing.TB, s *site.Site) (files []string) {
	t.Helper()
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), s.Dir+"/") {
			files = append(files, strings.TrimSpace(string(b)))
		}
	}
	return files
}

// mode checks that one tree is mounted, and returns its mount mode.
func mode(t testing.TB, s *site.Site) mount.Mode {
	t.Helper()
	st := sitetest.Status(t, s)
	if len(st.Mounts) != 1 {
		t.Fatalf("mounts: %+v, want one", st.Mounts)
	}
	return st.Mounts[0].Mode
}

// The mount mode can change at each start of the node. With the mode none, images are unpacked, and
// the status says why. With loop devices, a container reads the same bytes. If an image is lazy
// when the mode changes to none, its containers cannot be created, and the error names the mode.
// With another mode they can be created again.
func TestMountModes(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--mount-mode", "none"}}, "+base")
	moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "base") })
	if moved < 20<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	want := run(t, s, site.Lighter, "base", "sh", "-c", readAll)
	saysNone(t, s)
	removeImage(t, s, "base")

	s.SetNodeArgs("--mount-mode", "loop")
	restartNode(t, s)
	if moved = images.Received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved > 3<<20 {
		t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
	}
	behindLoops(t, s, want)

	s.SetNodeArgs("--mount-mode", "none")
	if err := s.Machine.StopNode(); err != nil {
		t.Fatal(err)
	}
	restartNode(t, s)
	_, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("base"), "echo", "hello")
	if err == nil || !strings.Contains(err.Error(), "mount chain sha256:") ||
		!strings.Contains(err.Error(), "mount_mode is none") {
		t.Errorf("a container of a lazy image: %v, want an error with the chain and \"mount_mode is none\"", err)
	}
	s.SetNodeArgs()
	restartNode(t, s)
	run(t, s, site.Lighter, "base", "echo", "hello")
	if mode(t, s) != mount.File {
		t.Errorf("mount mode with a kernel that mounts files: got %q, want %q", mode(t, s), mount.File)
	}
	removeImage(t, s, "base")
	if files := append(loops(t, s), left(t, s)...); len(files) != 0 {
		t.Errorf("loop devices, files and mounts after the image was removed: %v, want none", files)
	}
}

// saysNone checks that status and log say that no image is lazy. The status must also say why.
func saysNone(t *testing.T, s *site.Site) {
	t.Helper()
	st := sitetest.Status(t, s)
	if len(st.Mounts) != 0 || len(st.Images) == 0 || !strings.Contains(st.NotLazy, "mount_mode is none") {
		t.Errorf("the status: %+v, want images, no mounts, and the reason \"mount_mode is none\"", st)
	}
	for _, image := range st.Images {
		if image.Lazy || !strings.Contains(image.Why, "mount_mode is none") {
			t.Errorf("image in the status: %+v, want it not lazy, and the reason \"mount_mode is none\"", image)
		}
	}
	out, err := s.Machine.Lighter(t.Context(), "status")
	if err != nil || !strings.Contains(out, "no image is lazy: ") {
		t.Errorf("lighter status: %v, want the line \"no image is lazy: \" in\n%s", err, out)
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if err != nil || !strings.Contains(string(log), "no image will be lazy") {
		t.Errorf("the node's log (%v) has no line \"no image will be lazy\"", err)
	}
}

// behindLoops starts a container on loop devices, which reads nearly all files of the image while
// the node is killed several times. Each new node recognizes the mount. The digest of the files
// must be want.
func behindLoops(t *testing.T, s *site.Site, want string) {
	t.Helper()
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if len(loops(t, s)) != 2 || mode(t, s) != mount.Loop {
		t.Errorf("loop devices of the files %v, mount mode %q; want two loop devices, and mode %q", loops(t, s),
			mode(t, s), mount.Loop)
	}
	noWayAround(t, c)
	type result struct {
		output string
		err    error
	}
	read := make(chan result, 1)
	go func() {
		out, err := s.Machine.Ctr(t.Context(), "tasks", "exec", "--exec-id", "reader", c.ID,
			"sh", "-c", "{ until [ -e /tmp/enough ]; do "+readAll+"; done; } | uniq")
		read <- result{out, err}
	}()
	for range 3 {
		time.Sleep(300 * time.Millisecond) // while the container reads
		restartNode(t, s)
		if mode(t, s) != mount.Loop {
			t.Errorf("mount mode at the next node: got %q, want %q", mode(t, s), mount.Loop)
		}
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Exec(t.Context(), "touch", "/tmp/enough"); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got.err != nil || got.output != want {
		t.Errorf("digests of the files while nodes were killed: got %q, want only %q (%v)", got.output, want, got.err)
	}
	if out := run(t, s, site.Lighter, "base", "echo", "hello"); out != "hello\n" {
		t.Errorf("echo printed %q, want hello", out)
	}
	if err := c.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// noWayAround checks that root in a container can read neither the lower directories of the
// container's root by their paths, nor the loop devices.
func noWayAround(t *testing.T, c *site.Container) {
	t.Helper()
	const try = `
		for dir in $(sed -n 's/.*lowerdir=\([^,]*\).*/\1/p' /proc/self/mountinfo | tr : ' '); do
			echo looked
			ls "$dir" && echo "reads $dir"
		done
		for n in 0 1 2 3 4 5 6 7; do
			echo looked
			mknod /tmp/loop b 7 $n && head -c 1 /tmp/loop >/dev/null && echo "reads loop$n"
			rm -f /tmp/loop
		done
		true`
	out, err := c.Exec(t.Context(), "sh", "-c", "{ "+try+"; } 2>/dev/null")
	if err != nil || strings.Count(out, "looked") != 9 || strings.Contains(out, "reads") {
		t.Errorf("root in a container: %q (%v), want 9 attempts, and no \"reads\"", out, err)
	}
}
