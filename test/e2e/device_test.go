//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/node/fuse"
	"lighter/test/testkit/eventually"
)

// inMemory is a device whose content is in memory.
type inMemory []byte

func (m inMemory) ReadAt(_ context.Context, dst []byte, off int64) (missed int64, err error) {
	if n := copy(dst, m[off:]); n < len(dst) {
		return 0, fmt.Errorf("read %d bytes at %d of a device of %d bytes: out of range", len(dst), off, len(m))
	}
	return 0, nil
}

// hanging is a device whose reads wait until released is closed.
type hanging struct {
	inMemory
	reads     atomic.Int32 // number of reads that have begun
	cancelled atomic.Int32 // number of reads that were cancelled while they waited
	released  chan struct{}
}

func newHanging(data []byte) *hanging {
	return &hanging{inMemory: data, released: make(chan struct{})}
}

func (h *hanging) ReadAt(ctx context.Context, dst []byte, off int64) (missed int64, err error) {
	h.reads.Add(1)
	select {
	case <-h.released:
		return h.inMemory.ReadAt(ctx, dst, off)
	case <-ctx.Done():
		h.cancelled.Add(1)
		return 0, ctx.Err()
	}
}

// serveDevices mounts a directory of devices and serves it until the test ends. By then the test
// must have closed the devices, and unmounted the trees that use them.
func serveDevices(t *testing.T) (*fuse.Server, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := fuse.Mount(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(startServing(t, s))
	return s, dir
}

// startServing runs a server until stop is called. stop unmounts the server's directory.
func startServing(t testing.TB, s *fuse.Server) (stop func()) {
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	return func() {
		if err := s.Unmount(time.Second); err != nil {
			t.Error(err)
			return
		}
		if err := <-served; err != nil {
			t.Error("serve the devices:", err)
		}
		for range 2 { // further calls have no effect
			if err := errors.Join(s.Unmount(0), s.Detach()); err != nil {
				t.Error(err)
			}
		}
	}
}

// addDevice adds a device of size bytes, whose content r reads. It returns the device's ID, which
// is the digest of name, and its path.
func addDevice(t testing.TB, s *fuse.Server, name string, size int, r fuse.Reader) (chunk.ID, string) {
	t.Helper()
	id := chunk.Sum([]byte(name))
	path, err := s.Add(id, int64(size), r)
	if err != nil {
		t.Fatal(err)
	}
	return id, path
}

// noise returns random bytes. The same seed gives the same bytes.
func noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

// run starts a process. wait waits for its end, and returns what it has printed.
func run(t *testing.T, name string, args ...string) (cmd *exec.Cmd, wait func() (string, error)) {
	t.Helper()
	cmd = exec.Command(name, args...)
	return cmd, start(t, cmd)
}

// errStillRuns is returned by the function that start returns.
var errStillRuns = errors.New("the process still runs after a minute")

// start starts a process. wait waits for its end, and returns what it has printed. After a minute,
// wait kills the process and returns an error.
func start(t testing.TB, cmd *exec.Cmd) (wait func() (string, error)) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	return func() (string, error) {
		select {
		case err := <-done:
			return out.String(), err
		case <-time.After(60 * time.Second):
			return out.String(), errors.Join(errStillRuns, cmd.Process.Kill())
		}
	}
}

// openDevice opens a device file without Go's runtime poller, as other programs do. os.Open would
// poll the file, which can deadlock because this process also serves it.
func openDevice(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// readDevice reads a whole device.
func readDevice(path string) ([]byte, error) {
	fd, err := openDevice(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var all []byte
	b := make([]byte, 1<<20)
	for {
		n, err := unix.Pread(fd, b, int64(len(all)))
		if err != nil || n == 0 {
			return all, err
		}
		all = append(all, b[:n]...)
	}
}

// A device is a file that only root can read, at any offset, and that no process can write.
func TestDeviceIsAFile(t *testing.T) {
	s, dir := serveDevices(t)
	data := noise(1, 3<<20+4096)
	id, path := addDevice(t, s, "a", len(data), inMemory(data))
	info, err := os.Stat(path)
	if err != nil || info.Size() != int64(len(data)) || info.Mode() != 0o400 ||
		path != filepath.Join(dir, id.String()) {
		t.Fatalf("stat %s: %+v (%v), want %d bytes, mode 0400 and the name %s", path, info, err, len(data), id)
	}
	if got, err := readDevice(path); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %d bytes (%v), want the %d bytes of the device", len(got), err, len(data))
	}
	fd, err := openDevice(path, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, at := range []struct{ offset, size, want int }{{5000, 100, 100}, {len(data) - 10, 100, 10},
		{len(data), 100, 0}, {4095, 2 << 20, 2 << 20}} {
		b := make([]byte, at.size)
		n, err := unix.Pread(fd, b, int64(at.offset))
		if err != nil || n != at.want || !bytes.Equal(b[:n], data[at.offset:at.offset+n]) {
			t.Errorf("read %d bytes at %d: got %d (%v), want %d, as in the device", at.size, at.offset, n, err, at.want)
		}
	}
	if _, err := openDevice(path, unix.O_RDWR); !errors.Is(err, unix.EROFS) {
		t.Errorf("open to write: %v, want EROFS", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "unknown")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of a missing device: %v, want ENOENT", err)
	}
	if out, err := exec.Command("setpriv", "--reuid=1000", "--clear-groups", "cat", path).CombinedOutput(); err == nil {
		t.Errorf("read as another user: got %.100q, want an error", out)
	}
	if err := s.Unmount(0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmount while a device is open: %v, want EBUSY", err)
	}
}

// Once a device is removed, reads through a descriptor that is still open fail. They succeed again
// when the device was added again.
func TestDeviceRemovedWhileOpen(t *testing.T) {
	s, dir := serveDevices(t)
	data := noise(2, 1<<20)
	id, path := addDevice(t, s, "a", len(data), inMemory(data))
	fd, err := openDevice(path, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	read := func() error {
		b := make([]byte, 8192)
		_, err := unix.Pread(fd, b, 4096)
		if err == nil && !bytes.Equal(b, data[4096:4096+8192]) {
			t.Error("read through the open descriptor: got wrong bytes, want those of the device")
		}
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if err := read(); !errors.Is(err, unix.ESTALE) {
		t.Errorf("read of the removed device: %v, want ESTALE", err)
	}
	if _, err := openDevice(path, unix.O_RDONLY); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open of the removed device: %v, want ENOENT", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the directory lists %v (%v), want no device", names, err)
	}
	addDevice(t, s, "a", len(data), inMemory(data))
	if err := read(); err != nil {
		t.Errorf("read through the open descriptor after the device was added again: %v", err)
	}
	if got, err := readDevice(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes (%v) of the device that was added again, want its %d bytes", len(got), err, len(data))
	}
}

func TestManyDevices(t *testing.T) {
	s, dir := serveDevices(t)
	const n = 200
	var ids []chunk.ID
	for i := range n {
		data := noise(uint64(i), 64<<10)
		id, path := addDevice(t, s, strconv.Itoa(i), len(data), inMemory(data))
		ids = append(ids, id)
		if got, err := readDevice(path); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("device %d: read %d bytes (%v), want its %d bytes", i, len(got), err, len(data))
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != n {
		t.Errorf("the directory lists %d names (%v), want %d", len(names), err, n)
	}
	for _, id := range ids {
		if err := s.Remove(id); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, id.String())); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stat of a removed device: %v, want ENOENT", err)
		}
	}
}

// A server that was unmounted leaves no goroutine and no descriptor in its process.
func TestCloseLeavesNothing(t *testing.T) {
	count := func() (int, int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	run := func() {
		t.Run("", func(t *testing.T) {
			s, _ := serveDevices(t)
			data := noise(6, 4<<20)
			for i := range 20 {
				_, path := addDevice(t, s, strconv.Itoa(i), len(data), inMemory(data))
				if _, err := readDevice(path); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	run() // the first run also starts what stays until the process ends
	goroutines, fds := count()
	for range 5 {
		run()
	}
	eventually.Holds(t, "the end of all goroutines and descriptors", func() bool {
		g, f := count()
		return g <= goroutines && f <= fds
	})
}
