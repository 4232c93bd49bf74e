//go:build e2e

package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/node/mount"
	"lighter/test/testkit/site"
)

// readAll prints a digest of the names and contents of all files of the image.
const readAll = "find /etc /opt /usr /var -xdev -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"

// reconnect waits until containerd has reconnected to the node.
func reconnect(t testing.TB, s *site.Site) {
	t.Helper()
	if err := s.Machine.Reconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

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
	st := status(t, s)
	if len(st.Mounts) != 1 {
		t.Fatalf("mounted: %+v", st.Mounts)
	}
	return st.Mounts[0].Mode
}

// The mount mode can change at each start of the node. With the mode none, every image is unpacked,
// and the status says why. With loop devices, a container sees the same bytes. An image that was
// lazy fails with an error that names the mode none, and works again with another mode.
func TestMountModes(t *testing.T) {
	s := start(t, site.Options{NodeArgs: []string{"--mount-mode", "none"}}, "+base")
	moved := received(t, s, func() { pull(t, s, site.Lighter, "base") })
	if moved < 20<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	want := run(t, s, site.Lighter, "base", "sh", "-c", readAll)
	saysNone(t, s)
	removeImage(t, s, "base")

	s.SetNodeArgs("--mount-mode", "loop")
	restartNode(t, s)
	if moved = received(t, s, func() { pull(t, s, site.Lighter, "base") }); moved > 3<<20 {
		t.Errorf("the pull received %d bytes", moved)
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
		t.Errorf("a lazy image: %v", err)
	}
	s.SetNodeArgs()
	restartNode(t, s)
	run(t, s, site.Lighter, "base", "echo", "hello")
	if mode(t, s) != mount.File {
		t.Errorf("mode %q with a kernel that mounts files", mode(t, s))
	}
	removeImage(t, s, "base")
	if files := append(loops(t, s), left(t, s)...); len(files) != 0 {
		t.Errorf("left: %v", files)
	}
}

// saysNone checks that status and log say that no image is lazy, and why.
func saysNone(t *testing.T, s *site.Site) {
	t.Helper()
	st := status(t, s)
	if len(st.Mounts) != 0 || len(st.Images) == 0 || !strings.Contains(st.NotLazy, "mount_mode is none") {
		t.Errorf("the status: %+v", st)
	}
	for _, image := range st.Images {
		if image.Lazy || !strings.Contains(image.Why, "mount_mode is none") {
			t.Errorf("image %+v", image)
		}
	}
	out, err := s.Machine.Lighter(t.Context(), "status")
	if err != nil || !strings.Contains(out, "no image is lazy: ") {
		t.Errorf("status: %v\n%s", err, out)
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if err != nil || !strings.Contains(string(log), "no image will be lazy") {
		t.Errorf("the log does not say that no image is lazy: %v", err)
	}
}

// behindLoops reads the whole image in a container while the node is killed several times. The next
// node recognizes the mount, and the loop devices are freed with their last user.
func behindLoops(t *testing.T, s *site.Site, want string) {
	t.Helper()
	first, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("base"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	if len(loops(t, s)) != 2 || mode(t, s) != mount.Loop {
		t.Errorf("loop devices of %v, mode %q", loops(t, s), mode(t, s))
	}
	noWayAround(t, first)
	type result struct {
		output string
		err    error
	}
	read := make(chan result, 1)
	go func() {
		out, err := s.Machine.Ctr(t.Context(), "tasks", "exec", "--exec-id", "reader", first.ID,
			"sh", "-c", "{ until [ -e /tmp/enough ]; do "+readAll+"; done; } | uniq")
		read <- result{out, err}
	}()
	for range 3 {
		time.Sleep(300 * time.Millisecond) // while the container reads
		restartNode(t, s)
		if mode(t, s) != mount.Loop {
			t.Error("the next node does not recognize the mount")
		}
		if err := site.DropCaches(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := first.Exec(t.Context(), "touch", "/tmp/enough"); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got.err != nil || got.output != want {
		t.Errorf("read %q, want %q: %v", got.output, want, got.err)
	}
	if out := run(t, s, site.Lighter, "base", "echo", "hello"); out != "hello\n" {
		t.Errorf("echo printed %q", out)
	}
	if err := first.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// noWayAround checks that root in a container cannot read the lower directories of its root by
// their paths, nor the loop devices.
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
		t.Errorf("a container's root: %q, %v", out, err)
	}
}
