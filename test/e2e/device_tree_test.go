//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/eventually"
)

// testImage is a directory of files, and what mkfs.erofs has made of it: a metadata image and the
// content of its device.
type testImage struct {
	source   string // the directory
	metadata string // the file of the metadata image
	data     []byte // the device's content
}

// makeTestImage makes an image of files, given by path.
func makeTestImage(t testing.TB, files map[string][]byte) testImage {
	t.Helper()
	dir := t.TempDir()
	image := testImage{source: filepath.Join(dir, "source"), metadata: filepath.Join(dir, "metadata")}
	for name, content := range files {
		path := filepath.Join(image.source, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	blob := filepath.Join(dir, "blob")
	out, err := exec.Command("mkfs.erofs", "--quiet", "--blobdev="+blob, "--chunksize=16777216", image.metadata,
		image.source).CombinedOutput()
	if err != nil {
		t.Fatalf("mkfs.erofs: %v\n%s", err, out)
	}
	if image.data, err = os.ReadFile(blob); err != nil {
		t.Fatal(err)
	}
	image.data = append(image.data, make([]byte, -len(image.data)&4095)...)
	return image
}

// mountImage mounts an image until the test ends, and returns the mount point.
func mountImage(t testing.TB, image testImage, devicePath string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(image.metadata, dir, "erofs", unix.MS_RDONLY, "device="+devicePath); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount the tree:", err)
		}
	})
	return dir
}

// A killed process does not wait for its read. If it reads the device directly, the read is
// cancelled. If it reads a tree, the kernel sends no cancellation.
func TestDeviceReaderIsKilled(t *testing.T) {
	s, _ := serveDevices(t)
	image := makeTestImage(t, map[string][]byte{"file": noise(3, 1<<20)})
	h := newHanging(image.data)
	_, path := addDevice(t, s, "a", len(image.data), h)
	tree := mountImage(t, image, path)
	for _, file := range []string{filepath.Join(tree, "file"), path} {
		before := h.reads.Load()
		cmd, wait := run(t, "cat", file)
		eventually.Holds(t, "a read", func() bool { return h.reads.Load() > before })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := wait(); err == nil || errors.Is(err, errStillRuns) {
			t.Errorf("the killed reader of %s: %v, want it killed at once", file, err)
		}
	}
	eventually.Holds(t, "the cancellation of the direct read", func() bool { return h.cancelled.Load() == 1 })
	close(h.released)
	if got, err := os.ReadFile(filepath.Join(tree, "file")); err != nil || !bytes.Equal(got, noise(3, 1<<20)) {
		t.Errorf("read of the file after the release: got %d bytes (%v), want its %d bytes", len(got), err, 1<<20)
	}
}

// Eight processes read all files of a tree at the same time, as containers do: four as root, and
// four as another user. Each gets the right bytes.
func TestTreeOverDevice(t *testing.T) {
	s, _ := serveDevices(t)
	files := map[string][]byte{"large": noise(4, 40<<20), "empty": nil}
	for i := range 400 {
		files[fmt.Sprintf("d%d/f%d", i%7, i)] = noise(uint64(i), 1+i*i)
	}
	image := makeTestImage(t, files)
	_, path := addDevice(t, s, "a", len(image.data), inMemory(image.data))
	tree := mountImage(t, image, path)
	if err := os.Chmod(filepath.Dir(tree), 0o755); err != nil {
		t.Fatal(err)
	}
	var waits []func() (string, error)
	for i := range 8 {
		command := []string{"diff", "-r", image.source, tree}
		if i%2 == 1 {
			command = append([]string{"setpriv", "--reuid=1000", "--clear-groups"}, command...)
		}
		_, wait := run(t, command[0], command[1:]...)
		waits = append(waits, wait)
	}
	for i, wait := range waits {
		if out, err := wait(); err != nil {
			t.Errorf("reader %d: %v, want no difference\n%.500s", i, err, out)
		}
	}
}

// 29 processes read from a device that hangs. All of their reads reach the device, so no read waits
// for another. A read of another device succeeds meanwhile. Once the device answers, all processes
// get their bytes.
func TestStuckDevice(t *testing.T) {
	s, _ := serveDevices(t)
	stuckFiles := map[string][]byte{}
	for i := range 29 {
		stuckFiles[strconv.Itoa(i)] = noise(uint64(i), 300<<10)
	}
	stuck, other := makeTestImage(t, stuckFiles), makeTestImage(t, map[string][]byte{"file": noise(99, 20<<20)})
	h := newHanging(stuck.data)
	_, stuckPath := addDevice(t, s, "stuck", len(stuck.data), h)
	_, otherPath := addDevice(t, s, "other", len(other.data), inMemory(other.data))
	stuckTree, otherTree := mountImage(t, stuck, stuckPath), mountImage(t, other, otherPath)
	var waits []func() (string, error)
	for i := range 29 {
		_, wait := run(t, "cmp", filepath.Join(stuck.source, strconv.Itoa(i)),
			filepath.Join(stuckTree, strconv.Itoa(i)))
		waits = append(waits, wait)
	}
	eventually.Holds(t, "29 reads that hang", func() bool { return h.reads.Load() >= 29 })
	if got, err := os.ReadFile(filepath.Join(otherTree, "file")); err != nil || !bytes.Equal(got, noise(99, 20<<20)) {
		t.Errorf("read of the other device: got %d bytes (%v), want the %d bytes of its file", len(got), err, 20<<20)
	}
	if n := h.cancelled.Load(); n != 0 {
		t.Errorf("%d reads were cancelled, want none", n)
	}
	close(h.released)
	for i, wait := range waits {
		if out, err := wait(); err != nil {
			t.Errorf("reader %d of the hanging device: %v %s, want no difference", i, err, out)
		}
	}
}

// failing is a device whose reads fail if they include a byte of [from, to).
type failing struct {
	inMemory
	from, to int64
}

func (f failing) ReadAt(ctx context.Context, dst []byte, off int64) (missed int64, err error) {
	if off < f.to && f.from < off+int64(len(dst)) {
		return 0, errors.New("this part of the device is broken")
	}
	return f.inMemory.ReadAt(ctx, dst, off)
}

// The kernel would fill the rest of a short answer with zeros. So whatever the size of a read, each
// of its pages must either be correct or fail.
func TestErrorIsNeverZeros(t *testing.T) {
	s, _ := serveDevices(t)
	content := noise(5, 16<<20)
	image := makeTestImage(t, map[string][]byte{"file": content})
	_, path := addDevice(t, s, "a", len(image.data), failing{image.data, 5 << 20, 5<<20 + 1})
	file := filepath.Join(mountImage(t, image, path), "file")
	// Another process maps the file, because this process must not fault in pages that it serves.
	cmd := exec.Command("/proc/self/exe", file, filepath.Join(image.source, "file"))
	cmd.Env = append(os.Environ(), deviceHelper+"=compare")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "some pages could not be read\n" {
		t.Errorf("compare the mapped file: %v, want unreadable pages, and no other difference\n%.1000s", err, out)
	}
	failed := 0
	fd, err := openDevice(file, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page := make([]byte, 4096)
	for at := 0; at < len(content); at += 4096 {
		if _, err := unix.Pread(fd, page, int64(at)); errors.Is(err, unix.EIO) {
			failed++
		} else if err != nil || !bytes.Equal(page, content[at:at+4096]) {
			t.Fatalf("read the page at %d: got wrong bytes or an error (%v), want the right bytes or EIO", at, err)
		}
	}
	if failed == 0 || failed > 512 {
		t.Errorf("%d reads of a page failed, want 1 to 512", failed)
	}
}

// helpCompare maps a file, and compares each page with the original. It prints whether some pages
// could not be read.
func helpCompare(mapped, original string) error {
	want, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	file, err := os.Open(mapped)
	if err != nil {
		return err
	}
	defer file.Close()
	view, err := unix.Mmap(int(file.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(view)
	if err := unix.Madvise(view, unix.MADV_HUGEPAGE); err != nil { // makes the kernel read 2 MiB in two requests
		return err
	}
	failed := false
	for at := 0; at < len(want); at += 4096 {
		same, fault := samePage(view[at:at+4096], want[at:at+4096])
		if !fault && !same {
			return fmt.Errorf("the mapped page at %d has wrong bytes", at)
		}
		failed = failed || fault
	}
	if failed {
		fmt.Println("some pages could not be read")
	}
	return nil
}

// samePage reports whether a mapped page has the bytes want. fault reports that the page cannot be
// read.
func samePage(mapped, want []byte) (same, fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			fault = true
		}
	}()
	return bytes.Equal(mapped, want), false
}
