//go:build e2e

package node

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
)

// ownRoots is the directory with the roots of separate nodes, each of which serves one mount.
const ownRoots = "/var/lib/lighter-mounts"

// ownNodes lists the roots of separate nodes.
func ownNodes(t *testing.T) []string {
	t.Helper()
	roots, err := filepath.Glob(ownRoots + "/*")
	if err != nil {
		t.Fatal(err)
	}
	return roots
}

// both runs a test with a running node, and with a separate node for each mount.
func both(t *testing.T, test func(t *testing.T, root string)) {
	t.Run("node", func(t *testing.T) {
		d := startNode(t, newRoot(t), "--address", "")
		test(t, d.root)
		if s := status(t, d.root); len(s.Binds)+len(s.Mounts) != 0 {
			t.Errorf("user-facing mounts %+v and mounts %+v are left", s.Binds, s.Mounts)
		}
	})
	t.Run("own", func(t *testing.T) {
		test(t, filepath.Join(t.TempDir(), "no node"))
		if left := append(ownNodes(t), mountsBelow(t, ownRoots)...); len(left) > 0 {
			t.Errorf("roots and mounts of separate nodes are left: %s", left)
		}
	})
}

// A mounted image is read-only. A directory is mounted and unmounted under each of its paths.
func TestMount(t *testing.T) {
	both(t, func(t *testing.T, root string) {
		dir := t.TempDir()
		run(t, "mount", "--root", root, "tools:1", dir).good()
		shows(t, dir)
		if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("write to the mount: %v, want a read-only error", err)
		}
		// A second mount on the directory fails, under each of its paths, and the first one stays.
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		for _, again := range []string{dir, link, dir + "/"} {
			run(t, "mount", "--root", root, "tools:1", again).bad(1, dir, "already")
		}
		shows(t, dir)
		run(t, "unmount", "--root", root, link).good()
		if n := mountsOn(t, dir); n != 0 {
			t.Errorf("%d mounts on %s, want none", n, dir)
		}
		run(t, "unmount", "--root", root, dir).bad(1, dir, "not mounted by lighter")
	})
}

func TestMountOnASymbolicLink(t *testing.T) {
	both(t, func(t *testing.T, root string) {
		dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		run(t, "mount", "--root", root, "tools:1", link).good()
		shows(t, dir)
		run(t, "unmount", "--root", root, dir).good()
		if n := mountsOn(t, dir); n != 0 {
			t.Errorf("%d mounts on %s, want none", n, dir)
		}
	})
}

// `lighter mount` does not cover mounts of others, and `lighter unmount` does not unmount them.
func TestMountPointsOfOthers(t *testing.T) {
	both(t, func(t *testing.T, root string) {
		dir := t.TempDir()
		mine := func() {
			if err := unix.Mount("mine", dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
		}
		mine()
		run(t, "mount", "--root", root, "tools:1", dir).bad(1, dir, "something is mounted")
		run(t, "unmount", "--root", root, dir).bad(1, "not mounted by lighter")
		if n := mountsOn(t, dir); n != 1 {
			t.Fatalf("%d mounts on %s, want only the test's own", n, dir)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		run(t, "mount", "--root", root, "tools:1", dir).good()
		mine() // on top of the image's mount
		run(t, "unmount", "--root", root, dir).good()
		if n := mountsOn(t, dir); n != 2 {
			t.Errorf("%d mounts on %s, want the image's and the test's own on top of it", n, dir)
		}
		for range mountsOn(t, dir) {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}
	})
}

// Errors of mount and unmount name the cause. An image for several platforms needs --platform.
func TestMountErrors(t *testing.T) {
	both(t, func(t *testing.T, root string) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, "mount", "--root", root, "tools:1", filepath.Join(dir, "missing")).bad(2, "missing", "make it first")
		run(t, "mount", "--root", root, "tools:1", file).bad(2, "not a directory")
		run(t, "unmount", "--root", root, filepath.Join(dir, "missing")).bad(1, "not mounted by lighter")
		run(t, "mount", "--root", root, "nothing:1", dir).bad(1, `no image "nothing:1"`)
		run(t, "mount", "--root", root, "both:1", dir).bad(1, "--platform")
		run(t, "mount", "--root", root, "--platform", "linux/arm64", "both:1", dir).good()
		if b, err := os.ReadFile(filepath.Join(dir, "text")); err != nil || string(b) != "linux/arm64" {
			t.Errorf("text is %q (%v), want linux/arm64", b, err)
		}
		run(t, "unmount", "--root", root, dir).good()
	})
}

// All users can read a mounted image, so set-user-ID programs and devices in it have no effect.
func TestMountGivesNobodyRights(t *testing.T) {
	both(t, func(t *testing.T, root string) {
		dir := t.TempDir()
		run(t, "mount", "--root", root, "tools:1", dir).good()
		var stat unix.Statfs_t
		if err := unix.Statfs(dir, &stat); err != nil {
			t.Fatal(err)
		}
		if want := int64(unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV); stat.Flags&want != want {
			t.Errorf("the mount has flags %#x, want %#x: read-only, nosuid and nodev", stat.Flags, want)
		}
		id := filepath.Join(dir, "id")
		out, err := exec.Command("setpriv", "--reuid=1000", "--clear-groups", id, "-u").CombinedOutput()
		if err != nil || string(out) != "1000\n" {
			t.Errorf("a set-user-ID program that user 1000 runs has the user ID %q (%v), want 1000", out, err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "null")); !errors.Is(err, unix.EACCES) {
			t.Errorf("read of a device in the image: %v, want EACCES", err)
		}
		run(t, "unmount", "--root", root, dir).good()
	})
}

// A busy mount is not unmounted.
func TestUnmountInUse(t *testing.T) {
	both(t, func(t *testing.T, root string) {
		dir := t.TempDir()
		run(t, "mount", "--root", root, "tools:1", dir).good()
		cmd := exec.Command("sleep", "infinity")
		cmd.Dir = dir
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		run(t, "unmount", "--root", root, dir).bad(1, dir, "fuser")
		shows(t, dir)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		run(t, "unmount", "--root", root, dir).good()
	})
}

// silentHub accepts connections and never answers. asked reports whether a client has connected.
func silentHub(t *testing.T) (url string, asked func() bool) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var n atomic.Int32
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
			n.Add(1)
		}
	}()
	return "http://" + listener.Addr().String(), func() bool { return n.Load() > 0 }
}

// An interrupt of `lighter mount` at any moment leaves no node, no root and no mount behind.
func TestMountInterrupted(t *testing.T) {
	ownHas := func(name string) func() bool {
		return func() bool {
			found, err := filepath.Glob(filepath.Join(ownRoots, "*", name))
			return err == nil && len(found) > 0
		}
	}
	for name, when := range map[string]func() bool{"at the start": ownHas("node.log"),
		"when the node answers": ownHas("control.sock"), "in the middle": nil} {
		url, asked := silentHub(t) // a new hub for each case, because asked stays true after a connection
		if when == nil {
			when = asked
		}
		dir := t.TempDir()
		interrupt(t, when, "--root", filepath.Join(dir, "no node"), "--hub", url, "tools:1", dir)
		if left := append(ownNodes(t), mountsBelow(t, ownRoots)...); len(left)+mountsOn(t, dir) > 0 {
			t.Errorf("%s: left behind: %s, and %d mounts on %s", name, left, mountsOn(t, dir), dir)
		}
		for _, cmdline := range commandLines(t) {
			if strings.Contains(cmdline, ownRoots) {
				t.Errorf("%s: still running: %s", name, cmdline)
			}
		}
	}
	url, asked := silentHub(t)
	d := startNode(t, newRoot(t), "--address", "", "--hub", url)
	dir := t.TempDir()
	interrupt(t, asked, "--root", d.root, "tools:1", dir)
	if s := status(t, d.root); len(s.Binds) != 0 || mountsOn(t, dir) != 0 {
		t.Errorf("user-facing mounts of the running node: %+v, and %d on %s; want none", s.Binds, mountsOn(t, dir), dir)
	}
}

// interrupt runs `lighter mount` and interrupts it once when returns true.
func interrupt(t *testing.T, when func() bool, args ...string) {
	t.Helper()
	cmd := exec.Command(lighter, append([]string{"mount"}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the moment for the interrupt", when)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("an interrupted mount ended with %v, want exit code 1", err)
	}
}

// commandLines returns the command lines of all processes.
func commandLines(t *testing.T) (lines []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			lines = append(lines, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return lines
}

// The separate node of a mount is killed. The mount can be unmounted, or be mounted again.
func TestMountWhoseOwnNodeIsKilled(t *testing.T) {
	for _, next := range []string{"unmount", "mount"} {
		dir, none := t.TempDir(), filepath.Join(t.TempDir(), "no node")
		run(t, "mount", "--root", none, "tools:1", dir).good()
		killOwn(t)
		if next == "mount" {
			run(t, "mount", "--root", none, "tools:1", dir).good()
			shows(t, dir)
		}
		run(t, "unmount", "--root", none, dir).good()
		if left := append(ownNodes(t), mountsBelow(t, ownRoots)...); len(left)+mountsOn(t, dir) > 0 {
			t.Errorf("%s: left behind: %s, and %d mounts on %s", next, left, mountsOn(t, dir), dir)
		}
	}
}

// killOwn kills the only separate node.
func killOwn(t *testing.T) {
	t.Helper()
	roots := ownNodes(t)
	if len(roots) != 1 {
		t.Fatalf("separate nodes: %s, want one", roots)
	}
	pid := opener(t, filepath.Join(roots[0], "lock"))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the end of a killed node", func() bool { return syscall.Kill(pid, 0) != nil })
}

// opener returns a process that has a file open.
func opener(t *testing.T, path string) int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == path {
			var pid int
			for _, c := range strings.Split(link, "/")[2] {
				pid = pid*10 + int(c-'0')
			}
			return pid
		}
	}
	t.Fatalf("no process has %s open", path)
	return 0
}
