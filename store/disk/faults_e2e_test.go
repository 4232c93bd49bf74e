//go:build e2e

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"lighter/test/testkit/faultfs"
)

// A disk that fails everything with EIO is not read after badReads failures.
func TestDiskFailsEverything(t *testing.T) {
	dir, _ := ext4(t, 32, "", "")
	c := open(t, filepath.Join(dir, "cache"), MinLimit)
	putAll(t, c, 0, 60)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	how := uint32(2)            // EXT4_GOING_FLAGS_NOLOGFLUSH
	const shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how)))
	f.Close()
	if errno != 0 {
		t.Fatal(errno)
	}
	if n := countRange(t, c, 0, 60, faultLength); n > 0 {
		t.Errorf("on a disk that is gone: got %d chunks read, want 0", n)
	}
	s := c.Stats()
	if s.Unread != badReads || s.NoReads.IsZero() || s.Damaged > 0 {
		t.Errorf("after %d failed reads: got %+v, want an open breaker and no damaged chunks", badReads, s)
	}
	if n := putAll(t, c, 100, 110); n > 0 || c.Stats().OffUntil.IsZero() {
		t.Errorf("on a disk that is gone: got %d chunks written, %+v; want none, and a pause of writes", n, c.Stats())
	}
}

// A scrub of a disk that fails all reads drops no more chunks than readers would.
func TestScrubOfADiskThatFails(t *testing.T) {
	dir, disk := faulty(t)
	c := open(t, filepath.Join(dir, "cache"), MinLimit)
	putAll(t, c, 0, 60)
	disk.Fail(unix.EIO, faultfs.Read)
	if found, err := c.Scrub(t.Context(), rate.Inf); err == nil || found.Damaged != badReads {
		t.Errorf("Scrub: got %+v, %v, want %d damaged chunks and an error", found, err, badReads)
	}
	disk.Fail(0, faultfs.Read)
	ready(c)
	if n := countRange(t, c, 0, 60, faultLength); n != 60-badReads {
		t.Errorf("after the scrub: got %d chunks, want %d", n, 60-badReads)
	}
}

// One kind of operation fails for a while, and meanwhile chunks are put, read, moved and evicted.
// (No test has a real EDQUOT: not every kernel has quotas.)
func TestFaultsThatComeAndGo(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.EROFS} {
		for _, op := range []faultfs.Op{faultfs.Read, faultfs.Write, faultfs.Open, faultfs.Unlink} {
			if op == faultfs.Read && errno != unix.EIO {
				continue
			}
			t.Run(fmt.Sprintf("%s-%s", op, unix.ErrnoName(errno)), func(t *testing.T) {
				dir, disk := faulty(t)
				const limit = 4 << 20
				c := openSmall(t, filepath.Join(dir, "cache"), Limits{Size: limit}, limit/16)
				if err := c.Pin([32]byte{1}, "x", setOf(0, 10, faultLength)); err != nil {
					t.Fatal(err)
				}
				if n := putAll(t, c, 0, 40); n != 40 {
					t.Fatalf("got %d chunks, want 40", n)
				}
				disk.Fail(errno, op)
				putAll(t, c, 40, 140)
				countRange(t, c, 0, 40, faultLength)
				c.Prune()
				if disk.Failed(op) == 0 {
					t.Fatal("no operation has failed")
				}
				if s := c.Stats(); s.Used > limit {
					t.Errorf("while operations fail: got %+v, want at most %d bytes", s, limit)
				}
				disk.Fail(0, op)
				ready(c)
				putAll(t, c, 0, 10)
				putAll(t, c, 200, 300)
				if s := c.Stats(); s.Used > limit || s.Damaged > 0 || countRange(t, c, 0, 10, faultLength) != 10 {
					t.Errorf("when the disk works again: got %+v, pins %+v; want all pinned chunks, within the limit",
						s, c.Pins())
				}
				if n := putAll(t, c, 300, 310); n != 10 {
					t.Errorf("when the disk works again: got %d chunks stored, want 10", n)
				}
			})
		}
	}
}

// A cache on a read-only disk cannot be opened. An absent cache has no chunks: Pin returns an
// error, and the other methods do nothing.
func TestNoCache(t *testing.T) {
	dir := ram(t, "ro")
	_, err := Open(filepath.Join(dir, "cache"), Limits{Size: MinLimit}, quiet)
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("Open on a read-only disk: got %v, want %v", err, unix.EROFS)
	}
	c := Absent(err, filepath.Join(dir, "cache"), Limits{Size: MinLimit}, quiet)
	if n := putAll(t, c, 0, 3); n > 0 || c.Has([32]byte{}) {
		t.Error("an absent cache has a chunk")
	}
	c.Prune()
	c.Evict(&Set{})
	if _, err := c.Unpin([32]byte{}); err != nil {
		t.Errorf("Unpin of an absent cache: got %v, want no error", err)
	}
	if _, err := c.Scrub(t.Context(), rate.Inf); err != nil {
		t.Errorf("Scrub of an absent cache: got %v, want no error", err)
	}
	if pins := c.Pins(); len(pins) > 0 {
		t.Errorf("pins of an absent cache: got %+v, want none", pins)
	}
	if err := c.Pin([32]byte{}, "x", &Set{}); err == nil {
		t.Error("Pin of an absent cache: got no error, want one")
	}
	if s := c.Stats(); !strings.Contains(s.Absent, "read-only") || s.Misses != 3 {
		t.Errorf("stats of an absent cache: got %+v, want the reason \"read-only\" and 3 misses", s)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
