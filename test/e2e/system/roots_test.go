//go:build e2e

package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/node/mount"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
)

// onTmpfs mounts a tmpfs, and returns a path on it for the node's root.
func onTmpfs(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tmpfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1g"); err != nil {
		t.Fatal(err)
	}
	return unmountAtEnd(t, dir)
}

// onDisk returns a function that mounts a new file system of a type from a loop device, and returns
// a path on it for the node's root.
func onDisk(fstype string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		dir := filepath.Join(t.TempDir(), fstype)
		disk := dir + ".disk"
		for _, argv := range [][]string{
			{"truncate", "--size=1G", disk}, {"mkfs." + fstype, "-q", disk}, {"mkdir", dir},
			{"mount", "-o", "loop", disk, dir},
		} {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", argv, err, out)
			}
		}
		return unmountAtEnd(t, dir)
	}
}

// unmountAtEnd returns a path below the mount on dir for the node's root. When the test ends, it
// unmounts dir. This fails if the node has left mounts there.
func unmountAtEnd(t *testing.T, dir string) string {
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return filepath.Join(dir, "node")
}

// The node's root may be on tmpfs, XFS or btrfs. The kernel cannot mount EROFS from files on tmpfs,
// so the node uses loop devices there.
func TestRoots(t *testing.T) {
	for name, root := range map[string]struct {
		on   func(*testing.T) string
		mode mount.Mode
	}{"tmpfs": {onTmpfs, mount.Loop}, "XFS": {onDisk("xfs"), mount.File}, "btrfs": {onDisk("btrfs"), mount.File}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, site.Options{NodeRoot: root.on(t)}, "+base")
			moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "base") })
			if moved > 3<<20 {
				t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
			}
			write := []string{"sh", "-c",
				"mv /etc/debian_version /etc/moved && cat /etc/moved && echo more >>/etc/moved"}
			for range 2 {
				if out := run(t, s, site.Lighter, "base", write...); len(out) < 3 || out[:3] != "12." {
					t.Errorf("a container reads /etc/debian_version: %q, want \"12.\" at its beginning", out)
				}
				if mode(t, s) != root.mode {
					t.Errorf("mount mode %q, want %q", mode(t, s), root.mode)
				}
				restartNode(t, s)
			}
			removeImage(t, s, "base")
			if files := append(loops(t, s), left(t, s)...); len(files) != 0 {
				t.Errorf("loop devices, files and mounts after the image was removed: %v, want none", files)
			}
		})
	}
}
