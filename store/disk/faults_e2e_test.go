//go:build e2e

package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/test/testkit/faultfs"
)

// The disk below the cache fails, in each way that a disk can. What is asked of the
// cache meanwhile is always the same: no wrong byte, and that it can be used again.

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

// putAll puts chunks and tells how many are there in the end.
func putAll(t *testing.T, c *Cache, from, to int) int {
	t.Helper()
	for i := from; i < to; i++ {
		c.Put(data(i, faultLength))
	}
	return countRange(t, c, from, to, faultLength)
}

// ready ends the time in which the disk is left alone.
func ready(c *Cache) {
	c.ask()
	c.reads.until.Store(0)
}

// Each file system gives space out in a way of its own: XFS a file that grows more
// than it asks for.
func TestLimitOnFileSystems(t *testing.T) {
	small, _ := ext4(t, 64, "", "")
	large, _ := onLoop(t, 512, "mkfs.xfs -q", "")
	for name, dir := range map[string]string{"tmpfs": ram(t, "size=64m"), "ext4": small, "XFS": large} {
		t.Run(name, func(t *testing.T) { limitAtEachMoment(t, filepath.Join(dir, "cache")) })
	}
}

func TestFullDisk(t *testing.T) {
	small, _ := ext4(t, 16, "", "")
	for name, dir := range map[string]string{"tmpfs": ram(t, "size=8m"), "ext4": small} {
		t.Run(name, func(t *testing.T) {
			c := open(t, filepath.Join(dir, "cache"), MinLimit)
			n := putAll(t, c, 0, 500)
			if s := c.Stats(); s.Failed == 0 {
				t.Errorf("of a full disk nothing shows: %+v", s)
			} else if n == 0 && s.OffUntil.IsZero() {
				t.Errorf("nothing was kept: %+v", s)
			}
			// Somebody makes room.
			c.Prune()
			ready(c)
			if n := putAll(t, c, 1000, 1020); n != 20 {
				t.Errorf("of 20 chunks %d are there, when there is room again", n)
			}
		})
	}
}

// The cache keeps to its marks, and gives way when others fill the disk.
func TestDiskRunsShort(t *testing.T) {
	dir := ram(t, "size=64m")
	const MB = 1 << 20
	c := openSmall(t, filepath.Join(dir, "cache"), Limits{Size: MinLimit, Low: Space{Percent: 25}, High: Space{Bytes: 24 * MB}}, MB)
	putAll(t, c, 0, 1500) // 75 MB: more than there is
	s := c.Stats()
	if s.Failed > 0 || s.Used < 30*MB || s.Used > 48*MB {
		t.Errorf("alone on the disk: %+v", s)
	}
	if err := os.WriteFile(filepath.Join(dir, "others"), make([]byte, 12*MB), 0o600); err != nil {
		t.Fatal(err)
	}
	free := func() int64 {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		return int64(fs.Bavail) * fs.Bsize
	}
	eventually(t, "the high mark is free", func() bool { return free() >= 23*MB })
	if s := c.Stats(); s.Used < 4*MB || s.Room > 30*MB {
		t.Errorf("after it gave way: %+v", s)
	}
	putAll(t, c, 2000, 3500)
	if s := c.Stats(); s.Failed > 0 || free() < 16*MB-MB {
		t.Errorf("the cache goes on below the low mark: %d bytes are free, %+v", free(), s)
	}
	if err := os.Remove(filepath.Join(dir, "others")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is room again", func() bool { return c.Stats().Room > 40*MB })
	// With no room for anybody it keeps a little, until the disk is really full.
	others, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	eventually(t, "others have nearly all of the disk", func() bool {
		_, err := others.Write(make([]byte, MB))
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		info, err := others.Stat()
		return err == nil && info.Size() > 58*MB
	})
	eventually(t, "the cache has what it keeps", func() bool { return c.Stats().Room == 4*MB && c.Stats().Used <= 4*MB })
	if putAll(t, c, 4000, 4040) == 0 {
		t.Error("on a full disk there is no cache at all")
	}
}

// ext4 gives up, as its errors make it do: it is read-only from one moment to the
// next, or answers nothing but EIO.
func TestDiskTurnsReadOnly(t *testing.T) {
	dir, device := ext4(t, 32, "", "errors=remount-ro")
	c := open(t, filepath.Join(dir, "cache"), MinLimit)
	if n := putAll(t, c, 0, 20); n != 20 {
		t.Fatalf("of 20 chunks %d are there", n)
	}
	if err := os.WriteFile("/sys/fs/ext4/"+device+"/trigger_fs_error", []byte("a test"), 0o200); err != nil {
		t.Fatal(err)
	}
	if n := putAll(t, c, 20, 40); n > 0 {
		t.Errorf("%d chunks were written", n)
	}
	if n := countRange(t, c, 0, 20, faultLength); n != 20 {
		t.Errorf("of 20 chunks %d can be read", n)
	}
	if s := c.Stats(); s.Failed == 0 || s.OffUntil.IsZero() {
		t.Errorf("it does not show: %+v", s)
	}
	if freed := c.Prune(); freed.Bytes > 0 || c.Stats().Used == 0 {
		t.Errorf("freed %+v of a read-only disk", freed)
	}
}

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
		t.Errorf("%d chunks were read from a disk that is gone", n)
	}
	s := c.Stats()
	if s.Unread != badReads || s.NoReads.IsZero() || s.Damaged > 0 {
		t.Errorf("after %d failed reads the disk is not left alone: %+v", badReads, s)
	}
	if n := putAll(t, c, 100, 110); n > 0 || c.Stats().OffUntil.IsZero() {
		t.Errorf("%d were written, %+v", n, c.Stats())
	}
}

// faulty mounts a file system that fails or hangs as the test says.
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

// soon fails the test if what is done does not end. The disk is released then, so that
// nothing waits for it any more.
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
		t.Errorf("%s: it waits for the disk", what)
		disk.Release()
		<-done
	}
}

// The tables of a cache do not come from the disk, and everybody goes on: what is not known
// is not here, and what arrives is.
func TestOpenDelaysNoRead(t *testing.T) {
	dir, disk := faulty(t)
	const segment = 1 << 20
	limits := Limits{Size: MinLimit}
	c := openSmall(t, filepath.Join(dir, "cache"), limits, segment)
	if n := putAll(t, c, 0, 100); n != 100 {
		t.Fatalf("%d of 100 chunks are there", n)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Hang(".table", faultfs.Open)
	soon(t, disk, "open", func() {
		var err error
		if c, err = openSized(filepath.Join(dir, "cache"), limits, segment, quiet); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { c.Close() })
	eventually(t, "a table is read", func() bool { return disk.Hanging(faultfs.Open) == 1 })
	soon(t, disk, "use", func() {
		if n := countRange(t, c, 0, 100, faultLength); n > 0 {
			t.Errorf("%d chunks are known", n)
		}
		if n := putAll(t, c, 90, 110); n != 20 {
			t.Errorf("%d of 20 chunks were stored", n)
		}
		if s := c.Stats(); s.Loading == 0 || s.Chunks != 20 || s.Off() != "" {
			t.Errorf("%+v", s)
		}
	})
	disk.Release()
	eventually(t, "all is loaded", c.isLoaded)
	if n := countRange(t, c, 0, 110, faultLength); n != 110 || c.Stats().Chunks != 110 {
		t.Errorf("%d of 110 chunks are here: %+v", n, c.Stats())
	}
}

// hangs opens a cache with some chunks on a disk that a test has hang.
func hangs(t *testing.T) (*Cache, *faultfs.FS) {
	t.Helper()
	dir, disk := faulty(t)
	c := openSmall(t, filepath.Join(dir, "cache"), Limits{Size: MinLimit}, 256<<10)
	if n := putAll(t, c, 0, 60); n != 60 {
		t.Fatalf("%d of 60 chunks are there", n)
	}
	c.reads.patience = readPatience
	t.Cleanup(disk.Release) // before the cache is closed
	return c, disk
}

// A disk that answers no read: readers leave after a second, and the cache is bypassed
// until it answers. What comes too late goes nowhere.
func TestDiskHangs(t *testing.T) {
	c, disk := hangs(t)
	disk.Hang(".segment", faultfs.Read)
	first, _ := data(0, faultLength)
	dst := make([]byte, faultLength)
	soon(t, disk, "read", func() {
		if c.Read(first, 0, dst) {
			t.Error("the disk has answered")
		}
	})
	for i := range dst {
		dst[i] = 'x' // for another read
	}
	soon(t, disk, "read all", func() {
		if n := countRange(t, c, 0, 60, faultLength); n > 0 {
			t.Errorf("%d chunks were read", n)
		}
		c.Load([]chunk.Ref{first})
	})
	if s := c.Stats(); s.Hung != hungReads || c.reads.abandoned.Load() != hungReads || s.ReadsHang.IsZero() || s.Off() == "" || s.Chunks != 60 {
		t.Errorf("%d reads wait for the disk: %+v", c.reads.abandoned.Load(), s)
	}
	soon(t, disk, "scrub", func() {
		if _, err := c.Scrub(t.Context(), 0); err == nil {
			t.Error("a disk that hangs was verified")
		}
	})
	disk.Release()
	c.reads.patience = time.Minute // machines are slow
	eventually(t, "the disk is asked again", func() bool { s := c.Stats(); return s.Off() == "" && c.reads.abandoned.Load() == 0 })
	if n := countRange(t, c, 0, 60, faultLength); n != 60 {
		t.Errorf("%d of 60 chunks are here when it answers again", n)
	}
	if strings.Trim(string(dst), "x") != "" {
		t.Error("a read that was left has written to the buffer that was given back")
	}
}

// However many read, the disk has a bounded number of their reads.
func TestManyReadersOfADiskThatHangs(t *testing.T) {
	c, disk := hangs(t)
	disk.Hang(".segment", faultfs.Read)
	soon(t, disk, "read", func() {
		var readers sync.WaitGroup
		for i := range 200 {
			ref, plain := data(i%60, faultLength)
			readers.Go(func() {
				if has(t, c, ref, plain) {
					t.Error("the disk has answered")
				}
			})
		}
		readers.Wait()
	})
	if n := c.reads.abandoned.Load(); n < hungReads || n > maxReads || disk.Hanging(faultfs.Read) < int(n) { // it may have got one in parts
		t.Errorf("%d reads are left: %+v", n, c.Stats())
	}
}

// A disk that answers no write holds up no reader, and only the first of those who put.
func TestWritesHang(t *testing.T) {
	c, disk := hangs(t)
	c.reads.patience, c.writes.patience = time.Minute, time.Second
	disk.Hang(".segment", faultfs.Write)
	soon(t, disk, "put and read", func() {
		c.Put(data(100, faultLength))
		if s := c.Stats(); s.WritesHang.IsZero() || s.Off() == "" || s.Hung != 1 {
			t.Errorf("it does not show: %+v", s)
		}
		putAll(t, c, 101, 200)
		if n := countRange(t, c, 0, 50, faultLength); n != 50 { // the others may be in the segment that is written
			t.Errorf("%d of 50 chunks can be read", n)
		}
	})
	if n := c.writes.abandoned.Load(); n != 1 {
		t.Errorf("%d writes wait for the disk", n)
	}
	disk.Release()
	ref, plain := data(100, faultLength)
	eventually(t, "what was left is stored", func() bool { return has(t, c, ref, plain) })
	eventually(t, "the disk has answered", func() bool { return c.writes.abandoned.Load() == 0 })
	ready(c)
	if n := putAll(t, c, 200, 210); n != 10 {
		t.Errorf("when it answers again, %d of 10 chunks are there", n)
	}
}

// Close leaves a disk that does not answer, also while the cache loads; and the cache can
// be opened when it does.
func TestCloseOfADiskThatHangs(t *testing.T) {
	c, disk := hangs(t)
	disk.Hang("", faultfs.Open, faultfs.Read, faultfs.Write, faultfs.Unlink)
	soon(t, disk, "close", func() {
		if err := c.Close(); !errors.Is(err, errHangs) {
			t.Errorf("closed: %v", err)
		}
	})
	disk.Release()
	var again *Cache
	reopen := func() (err error) {
		again, err = openSized(c.dir, c.limits, c.segmentSize, quiet)
		return err
	}
	eventually(t, "it is closed", func() bool { return reopen() == nil })
	<-again.loaded
	again.reads.patience = time.Minute
	if n := countRange(t, again, 0, 60, faultLength); n != 60 {
		t.Errorf("%d of 60 chunks are here", n)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Hang(".table", faultfs.Open)
	if err := reopen(); err != nil {
		t.Fatal(err)
	}
	loads := again
	eventually(t, "a table is read", func() bool { return disk.Hanging(faultfs.Open) == 1 })
	soon(t, disk, "close", func() {
		if err := loads.Close(); !errors.Is(err, errHangs) {
			t.Errorf("closed: %v", err)
		}
	})
	disk.Release()
	eventually(t, "it is closed", func() bool { return reopen() == nil })
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// A disk that answers nothing costs a scrub's chunks no more than it does readers'.
func TestScrubOfADiskThatFails(t *testing.T) {
	dir, disk := faulty(t)
	c := open(t, filepath.Join(dir, "cache"), MinLimit)
	putAll(t, c, 0, 60)
	disk.Fail(unix.EIO, faultfs.Read)
	if found, err := c.Scrub(t.Context(), 0); err == nil || found.Damaged != badReads {
		t.Errorf("%+v, %v", found, err)
	}
	disk.Fail(0, faultfs.Read)
	ready(c)
	if n := countRange(t, c, 0, 60, faultLength); n != 60-badReads {
		t.Errorf("%d of 60 chunks are left", n)
	}
}

// Faults that come and go, one operation at a time, while chunks are put, read,
// moved and freed. (EDQUOT is here alone: not every kernel has quotas.)
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
					t.Fatalf("%d of 40 are there", n)
				}
				disk.Fail(errno, op)
				putAll(t, c, 40, 140)
				countRange(t, c, 0, 40, faultLength)
				c.Prune()
				if disk.Failed(op) == 0 {
					t.Fatal("nothing has failed")
				}
				if s := c.Stats(); s.Used > limit {
					t.Errorf("%+v", s)
				}
				disk.Fail(0, op)
				ready(c)
				putAll(t, c, 0, 10)
				putAll(t, c, 200, 300)
				if s := c.Stats(); s.Used > limit || s.Damaged > 0 || countRange(t, c, 0, 10, faultLength) != 10 {
					t.Errorf("when it works again, pinned chunks are missing: %+v, %+v", s, c.Pins())
				}
				if n := putAll(t, c, 300, 310); n != 10 {
					t.Errorf("when it works again, %d of 10 are there", n)
				}
			})
		}
	}
}

// A cache on a disk that is read-only from the start cannot be opened, and says so;
// one that is absent answers everything.
func TestNoCache(t *testing.T) {
	dir := ram(t, "ro")
	_, err := Open(filepath.Join(dir, "cache"), Limits{Size: MinLimit}, quiet)
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("opened: %v", err)
	}
	c := Absent(err, filepath.Join(dir, "cache"), Limits{Size: MinLimit}, quiet)
	if n := putAll(t, c, 0, 3); n > 0 || c.Has([32]byte{}) {
		t.Error("it has something")
	}
	c.Prune()
	c.Evict(&Set{})
	_, failed := c.Unpin([32]byte{})
	if _, err := c.Scrub(t.Context(), 0); err != nil || failed != nil || len(c.Pins()) > 0 || c.Pin([32]byte{}, "x", &Set{}) == nil {
		t.Error("it does something")
	}
	if s := c.Stats(); !strings.Contains(s.Absent, "read-only") || s.Misses != 3 {
		t.Errorf("%+v", s)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
