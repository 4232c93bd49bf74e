//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/format/erofs"
)

// Images are corrupted. The kernel mounts each of them that Walk accepts, and reads it without an
// error.
func TestErofsBrokenImages(t *testing.T) {
	accepted, rounds := 0, 400
	if os.Getenv("LIGHTER_SOAK") != "" {
		rounds *= 25
	}
	log := openKernelLog(t)
	for name, c := range map[string]*erofsCase{"odd": erofsOdd(), "deep": erofsDeep()} {
		meta, data := c.write(t)
		whole, err := os.ReadFile(meta)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(rounds) {
			b := bytes.Clone(whole)
			breakImage(rand.New(rand.NewPCG(seed, 11)), b)
			image, err := erofs.Open(bytes.NewReader(b), int64(len(b)))
			if err == nil {
				_, err = image.Walk(context.Background(), nil)
			}
			if errors.Is(err, erofs.ErrInvalid) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			accepted++
			if err := readMounted(t, b, data); err != nil {
				t.Errorf("%s, seed %d: read through the kernel: %v", name, seed, err)
			}
		}
	}
	if accepted < rounds/4 || accepted > 7*rounds/4 {
		t.Errorf("Walk accepted %d of %d images, want between %d and %d", accepted, 2*rounds,
			rounds/4, 7*rounds/4)
	}
	for _, line := range log.lines(t) {
		// Messages about the superblock are about other tests, which may mount files without one
		// meanwhile. breakImage does not change the superblock.
		if strings.Contains(line, "erofs") && !strings.Contains(line, "mounted with root inode") &&
			!strings.Contains(line, "superblock") {
			t.Errorf("the kernel logged: %s", line)
		}
	}
}

// breakImage corrupts one to three places after the block of the superblock, mostly fields of
// inodes. It copies bytes from elsewhere in the image, flips a bit, changes a byte by at most two,
// or writes a number at a bound of an integer type.
func breakImage(r *rand.Rand, b []byte) {
	bounds := []uint64{0, 1, 1 << 12, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1, 1<<64 - 1}
	for range 1 + r.IntN(3) {
		at := erofs.BlockSize + 2*r.IntN((len(b)-erofs.BlockSize-8)/2)
		if r.IntN(3) > 0 { // a field of a possible inode
			at = erofs.BlockSize + 32*r.IntN((len(b)-erofs.BlockSize)/32-3) + 2*r.IntN(24)
		}
		n := 1 << r.IntN(4)
		switch from := erofs.BlockSize + 2*r.IntN((len(b)-erofs.BlockSize-8)/2); r.IntN(4) {
		case 0:
			copy(b[at:at+n], b[from:])
		case 1:
			b[at] ^= 1 << r.IntN(8)
		case 2:
			b[at] += byte(r.IntN(5) - 2)
		default:
			copy(b[at:at+n], binary.LittleEndian.AppendUint64(nil, bounds[r.IntN(len(bounds))]))
		}
	}
}

// readMounted mounts an image and reads all names, attributes, extended attributes and links, and
// 4 KiB at the start, in the middle and at the end of each file.
func readMounted(t *testing.T, image []byte, data string) error {
	t.Helper()
	meta := filepath.Join(t.TempDir(), "meta")
	if err := os.WriteFile(meta, image, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := scratch(t)
	if err := unix.Mount(meta, dir, "erofs", unix.MS_RDONLY, "device="+data); err != nil {
		return err
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return readEntry(path)
	})
}

func readEntry(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	names := make([]byte, 64<<10)
	if _, err := unix.Llistxattr(path, names); err != nil {
		return &fs.PathError{Op: "llistxattr", Path: path, Err: err}
	}
	for name := range bytes.SplitSeq(bytes.Trim(names, "\x00"), []byte{0}) {
		value := make([]byte, 64<<10)
		if _, err := unix.Lgetxattr(path, string(name), value); len(name) > 0 && err != nil {
			return &fs.PathError{Op: "lgetxattr " + string(name), Path: path, Err: err}
		}
	}
	switch info.Mode().Type() {
	case fs.ModeSymlink:
		_, err = os.Readlink(path)
	case 0:
		var file *os.File
		if file, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); err != nil {
			return err
		}
		defer file.Close()
		for _, offset := range []int64{0, info.Size() / 2 &^ 4095, max(info.Size()-4096, 0)} {
			if _, err := file.ReadAt(make([]byte, 4096), offset); err != nil && err != io.EOF {
				return err
			}
		}
	}
	return err
}

// kernelLog reads the messages that the kernel logs after openKernelLog.
type kernelLog struct{ fd int }

func openKernelLog(t *testing.T) kernelLog {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Seek(fd, 0, io.SeekEnd)
	}
	if err != nil {
		t.Fatalf("open the kernel's log: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return kernelLog{fd}
}

// lines returns the messages that no call of lines has returned before.
func (l kernelLog) lines(t *testing.T) (lines []string) {
	t.Helper()
	b := make([]byte, 16<<10)
	for {
		n, err := unix.Read(l.fd, b)
		switch {
		case errors.Is(err, unix.EPIPE): // the next messages were overwritten: read the oldest that is left
		case errors.Is(err, unix.EAGAIN):
			return lines
		case err != nil:
			t.Fatal(err)
		default:
			lines = append(lines, string(b[:n]))
		}
	}
}
