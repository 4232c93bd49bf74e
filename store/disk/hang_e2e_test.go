//go:build e2e

package disk

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"lighter/format/chunk"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/faultfs"
)

// hangs opens a cache with 60 chunks on a disk that can hang.
func hangs(t *testing.T) (*Cache, *faultfs.FS) {
	t.Helper()
	dir, disk := faulty(t)
	c := openSmall(t, filepath.Join(dir, "cache"), Limits{Size: MinLimit}, 256<<10)
	if n := putAll(t, c, 0, 60); n != 60 {
		t.Fatalf("got %d chunks, want 60", n)
	}
	c.reads.patience = readPatience
	t.Cleanup(disk.Release) // before the cache is closed
	return c, disk
}

// While the disk does not return the cache's tables, the cache can be used: old chunks are missing,
// and new chunks are stored.
func TestOpenDelaysNoRead(t *testing.T) {
	dir, disk := faulty(t)
	const segment = 1 << 20
	limits := Limits{Size: MinLimit}
	c := openSmall(t, filepath.Join(dir, "cache"), limits, segment)
	if n := putAll(t, c, 0, 100); n != 100 {
		t.Fatalf("got %d chunks, want 100", n)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Hang(".table", faultfs.Open)
	soon(t, disk, "open", func() {
		c = newSmall(filepath.Join(dir, "cache"), limits, segment)
		if err := c.open(); err != nil {
			t.Error(err)
		}
		c.start(c.takeOver)
	})
	t.Cleanup(func() { c.Close() })
	eventually.Holds(t, "a table is read", func() bool { return disk.Hanging(faultfs.Open) == 1 })
	soon(t, disk, "use", func() {
		if n := countRange(t, c, 0, 100, faultLength); n > 0 {
			t.Errorf("before a table is loaded: got %d chunks, want 0", n)
		}
		if n := putAll(t, c, 90, 110); n != 20 {
			t.Errorf("before a table is loaded: got %d chunks stored, want 20", n)
		}
		if s := c.Stats(); s.Loading == 0 || s.Chunks != 20 || s.Off() != "" {
			t.Errorf("before a table is loaded: got %+v, want 20 chunks, a cache that loads, and no fault", s)
		}
	})
	disk.Release()
	eventually.Holds(t, "all is loaded", c.isLoaded)
	if n := countRange(t, c, 0, 110, faultLength); n != 110 || c.Stats().Chunks != 110 {
		t.Errorf("after loading: got %d chunks, want 110: %+v", n, c.Stats())
	}
}

// After a second, readers abandon a disk that hangs. The cache is bypassed until the disk answers.
// A read that ends late does not write to its caller's buffer.
func TestDiskHangs(t *testing.T) {
	c, disk := hangs(t)
	disk.Hang(".segment", faultfs.Read)
	first, _ := data(0, faultLength)
	dst := make([]byte, faultLength)
	soon(t, disk, "read", func() {
		if c.Read(first, 0, dst) {
			t.Error("a read of a disk that hangs: got true, want false")
		}
	})
	for i := range dst {
		dst[i] = 'x' // as if the buffer were in use again
	}
	soon(t, disk, "read all", func() {
		if n := countRange(t, c, 0, 60, faultLength); n > 0 {
			t.Errorf("on a disk that hangs: got %d chunks read, want 0", n)
		}
		c.Load([]chunk.Ref{first})
	})
	if s := c.Stats(); s.Hung != hungReads || c.reads.abandoned.Load() != hungReads || s.ReadsHang.IsZero() ||
		s.Off() == "" || s.Chunks != 60 {
		t.Errorf("got %d abandoned reads, want %d: %+v", c.reads.abandoned.Load(), hungReads, s)
	}
	soon(t, disk, "scrub", func() {
		if _, err := c.Scrub(t.Context(), rate.Inf); err == nil {
			t.Error("Scrub of a disk that hangs: got no error")
		}
	})
	disk.Release()
	c.reads.patience = time.Minute // machines are slow
	eventually.Holds(t, "the breaker is closed", func() bool {
		s := c.Stats()
		return s.Off() == "" && c.reads.abandoned.Load() == 0
	})
	if n := countRange(t, c, 0, 60, faultLength); n != 60 {
		t.Errorf("when the disk answers again: got %d chunks, want 60", n)
	}
	if strings.Trim(string(dst), "x") != "" {
		t.Error("an abandoned read has written to its caller's buffer")
	}
}

// The number of reads that wait for a disk that hangs is bounded.
func TestManyReadersOfADiskThatHangs(t *testing.T) {
	c, disk := hangs(t)
	disk.Hang(".segment", faultfs.Read)
	soon(t, disk, "read", func() {
		var readers sync.WaitGroup
		for i := range 200 {
			ref, plain := data(i%60, faultLength)
			readers.Go(func() {
				if has(t, c, ref, plain) {
					t.Error("a read of a disk that hangs: got true, want false")
				}
			})
		}
		readers.Wait()
	})
	if n := c.reads.abandoned.Load(); n < hungReads || n > maxReads ||
		disk.Hanging(faultfs.Read) < int(n) { // FUSE may split a read
		t.Errorf("got %d abandoned reads, want %d to %d: %+v", n, hungReads, maxReads, c.Stats())
	}
}

// A disk that hangs on writes delays the first Put, and neither readers nor later Puts.
func TestWritesHang(t *testing.T) {
	c, disk := hangs(t)
	c.reads.patience, c.writes.patience = time.Minute, time.Second
	disk.Hang(".segment", faultfs.Write)
	soon(t, disk, "put and read", func() {
		c.Put(data(100, faultLength))
		if s := c.Stats(); s.WritesHang.IsZero() || s.Off() == "" || s.Hung != 1 {
			t.Errorf("got %+v, want writes that hang, one of them unanswered", s)
		}
		putAll(t, c, 101, 200)
		if n := countRange(t, c, 0, 50, faultLength); n != 50 { // the others may be in the active segment
			t.Errorf("while writes hang: got %d chunks read, want 50", n)
		}
	})
	if n := c.writes.abandoned.Load(); n != 1 {
		t.Errorf("got %d abandoned writes, want 1", n)
	}
	disk.Release()
	ref, plain := data(100, faultLength)
	eventually.Holds(t, "the abandoned write is stored", func() bool { return has(t, c, ref, plain) })
	eventually.Holds(t, "the disk has answered", func() bool { return c.writes.abandoned.Load() == 0 })
	ready(c)
	if n := putAll(t, c, 200, 210); n != 10 {
		t.Errorf("when the disk answers again: got %d chunks stored, want 10", n)
	}
}

// Close does not wait for a disk that hangs, not even while the cache loads. The cache can be
// opened again when the disk answers.
func TestCloseOfADiskThatHangs(t *testing.T) {
	c, disk := hangs(t)
	disk.Hang("", faultfs.Open, faultfs.Read, faultfs.Write, faultfs.Unlink)
	soon(t, disk, "close", func() {
		if err := c.Close(); !errors.Is(err, errHangs) {
			t.Errorf("Close: got %v, want %v", err, errHangs)
		}
	})
	disk.Release()
	var again *Cache
	reopen := func() error {
		again = newSmall(c.dir, c.limits, c.segmentSize)
		if err := again.open(); err != nil {
			return err
		}
		again.start(again.takeOver)
		return nil
	}
	eventually.Holds(t, "it is closed", func() bool { return reopen() == nil })
	<-again.loaded
	again.reads.patience = time.Minute
	if n := countRange(t, again, 0, 60, faultLength); n != 60 {
		t.Errorf("after a restart: got %d chunks, want 60", n)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Hang(".table", faultfs.Open)
	if err := reopen(); err != nil {
		t.Fatal(err)
	}
	loads := again
	eventually.Holds(t, "a table is read", func() bool { return disk.Hanging(faultfs.Open) == 1 })
	soon(t, disk, "close", func() {
		if err := loads.Close(); !errors.Is(err, errHangs) {
			t.Errorf("Close: got %v, want %v", err, errHangs)
		}
	})
	disk.Release()
	eventually.Holds(t, "it is closed", func() bool { return reopen() == nil })
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
