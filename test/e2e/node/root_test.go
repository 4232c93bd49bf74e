//go:build e2e

package node

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"lighter/node/mount"
)

// On another overlayfs, as in a container without a volume, no snapshot can be
// made, and the node says so before anything is pulled. What is mounted without
// containerd is behind loop devices there.
func TestRootOnOverlayfs(t *testing.T) {
	dir := t.TempDir()
	merged := filepath.Join(dir, "merged")
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + dir + "/lower,upperdir=" + dir + "/upper,workdir=" + dir + "/work"
	if err := syscall.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(merged, 0); err != nil {
			t.Errorf("the node left something: %v", err)
		}
	})
	root := filepath.Join(merged, "node")
	run(t, "node", "--root", root, "--address", filepath.Join(dir, "s.sock")).bad(1, root, "overlayfs", "--root")
	d := startNode(t, root, "--address", "")
	at := t.TempDir()
	run(t, "mount", "--root", root, "tools:1", at).good()
	shows(t, at)
	if s := status(t, root); len(s.Mounts) != 1 || s.Mounts[0].Mode != mount.Loop {
		t.Errorf("mounted: %+v", s.Mounts)
	}
	d.end(syscall.SIGKILL)
	d.start()
	shows(t, at)
	run(t, "unmount", "--root", root, at).good()
	d.end(syscall.SIGTERM)
}
