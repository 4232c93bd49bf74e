//go:build e2e

package disk

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/faultfs"
)

// In these tests the disk below the cache fails, in each way that a disk can. The tests check that
// no wrong byte is read, and that the cache works again afterwards.

const faultLength = 50_000

// ram mounts a file system in memory.
func ram(t *testing.T, options string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// ext4 mounts an ext4 of a few megabytes on a loop device.
func ext4(t *testing.T, megabytes int64, mkfs, options string) (dir, device string) {
	t.Helper()
	return onLoop(t, megabytes, "mkfs.ext4 -q -F -b 4096 -m 0 -E lazy_itable_init=0 "+mkfs, options)
}

func onLoop(t *testing.T, megabytes int64, mkfs, options string) (dir, device string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, megabytes<<20)); err != nil {
		t.Fatal(err)
	}
	line := append(strings.Fields(mkfs), image)
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", mkfs, err, out)
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop,"+options, image, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "--detach-loop", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	out, err := exec.Command("findmnt", "-no", "SOURCE", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Base(strings.TrimSpace(string(out)))
}

// faulty mounts a file system that fails or hangs as a test tells it to.
func faulty(t *testing.T) (dir string, disk *faultfs.FS) {
	t.Helper()
	dir = t.TempDir()
	disk, err := faultfs.Mount(t.TempDir(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = disk.Close(dir) })
	return dir, disk
}

// soon fails the test if do does not return within 30 s. Then it releases the disk, so that nothing
// waits for it any more.
func soon(t *testing.T, disk *faultfs.FS, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Errorf("%s: waited 30 s for the disk, want no wait", what)
		disk.Release()
		<-done
	}
}

// putAll puts chunks and returns how many of them can be read afterwards.
func putAll(t *testing.T, c *Cache, from, to int) int {
	t.Helper()
	for i := from; i < to; i++ {
		c.Put(data(i, faultLength))
	}
	return countRange(t, c, from, to, faultLength)
}

// ready closes the circuit breakers, so that a test need not wait for them.
func ready(c *Cache) {
	c.writes.until.Store(0)
	c.reads.until.Store(0)
}
