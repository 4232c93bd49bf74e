//go:build e2e

package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lighter/node/mount"
	"lighter/test/testkit/site"
	"lighter/test/testkit/socketdir"
)

// A root whose socket paths are too long for the kernel is refused, also through a symlink, before
// any file is created in it.
func TestRootTooLong(t *testing.T) {
	dir := socketdir.New(t)
	root := filepath.Join(dir, strings.Repeat("x", 100))
	run(t, "node", "--root", root, "--address", "").bad(2, root, "control.sock", "107", "--root")
	run(t, "status", "--root", root).bad(1, root, "107", "--root")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("files of a refused node: %v (%v), want none", entries, err)
	}
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(root, 0o700), os.Symlink(root, link)); err != nil {
		t.Fatal(err)
	}
	run(t, "node", "--root", link, "--address", "").bad(1, root, "107", "--root")
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("files of a refused node: %v (%v), want none", entries, err)
	}
}

// The disk of the root becomes read-only. A running node continues, and a new one fails with an
// error that names the cause.
func TestRootTurnsReadOnly(t *testing.T) {
	dir := socketdir.New(t)
	image, disk := filepath.Join(dir, "ext4"), filepath.Join(dir, "disk")
	script := "mkdir $2 && truncate -s 200M $1 && mkfs.ext4 -q -F $1 && mount -o loop,errors=remount-ro $1 $2 && " +
		"findmnt -no SOURCE $2"
	device, err := exec.Command("sh", "-ec", script, "sh", image, disk).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	root := filepath.Join(disk, "node")
	d := startNode(t, root, "--address", "", "--disk-free-low", "0")
	at := t.TempDir()
	run(t, "mount", "--root", root, "tools:1", at).good()
	t.Cleanup(func() {
		if err := errors.Join(syscall.Unmount(at, syscall.MNT_DETACH), mount.Release(root)); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile("/sys/fs/ext4/"+filepath.Base(strings.TrimSpace(string(device)))+"/trigger_fs_error",
		[]byte("a test"), 0o200); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Fatalf("the disk is not read-only: %v", err)
	}
	if err := site.DropCaches(); err != nil {
		t.Fatal(err)
	}
	shows(t, at)
	status(t, root)
	d.end(syscall.SIGKILL)
	for _, root := range []string{root, filepath.Join(disk, "new")} {
		run(t, "node", "--root", root, "--address", "").bad(1, root, "read-only", "make it writable", "--root")
	}
}

// On overlayfs, as in a container without a volume, no snapshots can be made. So a node for
// containerd refuses to start. A node for `lighter mount` works there, with loop devices.
func TestRootOnOverlayfs(t *testing.T) {
	dir := socketdir.New(t)
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
			t.Errorf("the ended node still uses the overlay: %v", err)
		}
	})
	root := filepath.Join(merged, "node")
	run(t, "node", "--root", root, "--address", filepath.Join(dir, "s.sock")).bad(1, root, "overlayfs", "--root")
	d := startNode(t, root, "--address", "")
	at := t.TempDir()
	run(t, "mount", "--root", root, "tools:1", at).good()
	shows(t, at)
	if s := status(t, root); len(s.Mounts) != 1 || s.Mounts[0].Mode != mount.Loop {
		t.Errorf("mounts: %+v, want one with mode loop", s.Mounts)
	}
	d.end(syscall.SIGKILL)
	d.start()
	shows(t, at)
	run(t, "unmount", "--root", root, at).good()
	d.end(syscall.SIGTERM)
}
