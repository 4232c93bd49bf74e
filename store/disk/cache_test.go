package disk

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

var quiet = slog.New(slog.DiscardHandler)

// data returns chunk n: a reference to it, and its bytes.
func data(n, length int) (chunk.Ref, []byte) {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	b := make([]byte, length)
	_, _ = r.Read(b)
	return chunk.Ref{ID: chunk.Sum(b), Length: uint32(length)}, b
}

// open opens a cache, and returns when it is loaded.
func open(t testing.TB, dir string, limit int64) *Cache {
	t.Helper()
	limits := Limits{Size: limit}
	return openSmall(t, dir, limits, newSpace(limits).segmentSize)
}

// openSmall does what open does, with a limit and segments that may be too small for Open. A slow
// disk does not count as a hanging disk.
func openSmall(t testing.TB, dir string, limits Limits, segmentSize int64) *Cache {
	t.Helper()
	c := newSmall(dir, limits, segmentSize)
	c.reads.patience, c.writes.patience = time.Minute, time.Minute
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	c.start(c.takeOver)
	t.Cleanup(func() { c.Close() })
	<-c.loaded
	return c
}

// newSmall does what newCache does, with segments of that size.
func newSmall(dir string, limits Limits, segmentSize int64) *Cache {
	c := newCache(dir, limits, quiet)
	c.segmentSize = segmentSize
	return c
}

// crash ends a cache as SIGKILL would.
func crash(c *Cache) {
	c.stop()
	c.stopped.Wait()
	for _, s := range c.segments() {
		s.file.Close()
	}
	c.lock.Close()
}

// has reports whether the whole chunk can be read. A wrong byte fails the test.
func has(t testing.TB, c *Cache, ref chunk.Ref, want []byte) bool {
	t.Helper()
	got := make([]byte, ref.Length)
	if !c.Read(ref, 0, got) {
		return false
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("Read of chunk %s: got wrong bytes", ref.ID.Short())
	}
	return true
}

func TestCacheGivesBackWhatWasPut(t *testing.T) {
	c := open(t, t.TempDir(), MinLimit)
	for i, length := range []int{1, 4095, 4096, 4097, 65536, chunk.MaxLength} {
		ref, plain := data(i, length)
		if c.Has(ref.ID) || has(t, c, ref, plain) {
			t.Errorf("a chunk of %d bytes is cached before it was put", length)
		}
		c.Put(ref, plain)
		if !c.Has(ref.ID) || !has(t, c, ref, plain) {
			t.Errorf("a chunk of %d bytes was put, but is missing", length)
		}
		r := rand.New(rand.NewPCG(1, 1))
		for range 200 {
			from := r.IntN(length)
			to := from + r.IntN(length-from+1)
			got := make([]byte, to-from)
			if !c.Read(ref, from, got) || !bytes.Equal(got, plain[from:to]) {
				t.Fatalf("Read of bytes %d to %d of %d: got wrong bytes", from, to, length)
			}
		}
	}
	ref, _ := data(3, 4097)
	for _, outside := range [][2]int{{-1, 1}, {4097, 1}, {4000, 98}} {
		if c.Read(ref, outside[0], make([]byte, outside[1])) {
			t.Errorf("Read of %d bytes at %d of 4097: got true, want false", outside[1], outside[0])
		}
	}
}

func TestCacheSurvivesARestart(t *testing.T) {
	for name, killed := range map[string]bool{"closed": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c, err := Open(dir, Limits{Size: MinLimit}, quiet)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				c.Put(data(i, 100_000))
			}
			if killed {
				crash(c)
			} else if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, dir, MinLimit)
			for i := range 40 {
				ref, plain := data(i, 100_000)
				if !has(t, again, ref, plain) {
					t.Errorf("after a restart chunk %d is missing", i)
				}
			}
			again.Put(data(100, 5000))
			if ref, plain := data(100, 5000); !has(t, again, ref, plain) {
				t.Error("the reopened cache stores nothing")
			}
		})
	}
}

func TestCacheIsOneProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, MinLimit)
	if _, err := Open(dir, Limits{Size: MinLimit}, quiet); err == nil {
		t.Error("Open of a cache that is in use: got no error")
	}
	if _, err := Open(t.TempDir(), Limits{Size: MinLimit - 1}, quiet); err == nil {
		t.Error("Open with a limit that is too small: got no error")
	}
}

// diskUse returns how many bytes of the disk a directory takes, as du does.
func diskUse(t testing.TB, dir string) (total int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{dir} // the directory takes blocks, too
	for _, entry := range entries {
		paths = append(paths, filepath.Join(dir, entry.Name()))
	}
	for _, path := range paths {
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err == nil { // otherwise it was evicted
			total += stat.Blocks * 512
		}
	}
	return total
}

func TestCacheStaysBelowItsLimit(t *testing.T) {
	dir := t.TempDir()
	const limit = 4 << 20
	c := openSmall(t, dir, Limits{Size: limit}, limit/16)
	first, firstPlain := data(0, 1000)
	for i := range 250 {
		if i%10 == 0 && i > 0 {
			if !has(t, c, first, firstPlain) {
				t.Fatalf("a chunk in constant use was evicted after %d chunks", i)
			}
		} else if i == 0 {
			c.Put(first, firstPlain)
		}
		c.Put(data(i+1, 64<<10))
		if used := c.Stats().Used; used > limit {
			t.Fatalf("got %d bytes used, want at most %d", used, limit)
		}
	}
	if on := diskUse(t, dir); on > limit {
		t.Errorf("got %d bytes on disk, want at most %d", on, limit)
	}
	if ref, plain := data(250, 64<<10); !has(t, c, ref, plain) {
		t.Error("the latest chunk was evicted")
	}
	if ref, plain := data(15, 64<<10); has(t, c, ref, plain) {
		t.Error("an old unused chunk is still cached")
	}
	c.Prune()
	if s := c.Stats(); s.Used != 0 || s.Chunks != 0 {
		t.Errorf("after Prune: got %+v, want no chunks and no bytes", s)
	}
	smaller := t.TempDir()
	big := open(t, smaller, 2*MinLimit)
	for i := range 110 {
		big.Put(data(i, 1<<20))
	}
	big.Close()
	if used := open(t, smaller, MinLimit).Stats().Used; used > MinLimit {
		t.Errorf("reopened with a smaller limit: got %d bytes used, want at most %d", used, MinLimit)
	}
}

// The bytes of tables count towards the limit. With tiny chunks they are a large part of the bytes
// on disk.
func TestTablesCountTowardsTheLimit(t *testing.T) {
	dir := t.TempDir()
	const limit = 128 << 10
	c := openSmall(t, dir, Limits{Size: limit}, 8<<10)
	for i := range 3_000 {
		c.Put(data(i, 20))
	}
	c.stop() // so that the owner writes nothing more
	c.stopped.Wait()
	c.writeTables()
	if used, on := c.Stats().Used, diskUse(t, dir); on > limit || used < on || used > on+c.segmentSize {
		t.Errorf("got %d bytes on disk and %d counted, want at most %d on disk, and 0 to %d more counted than on disk",
			on, used, limit, c.segmentSize)
	}
}

// Recently used chunks stay, also across restarts. Restarts do not leave small segments.
func TestRestartsKeepOrder(t *testing.T) {
	dir := t.TempDir()
	c, refs := fill(t, dir)
	countThere(c, refs[:2])
	c.Close()
	c = open(t, dir, MinLimit)
	if !c.evictNow() || countThere(c, refs[:2]) != 2 {
		t.Error("the most recently used chunk was evicted first")
	}
	for i := range 10 {
		c.Put(data(i+100, 100))
		c.Close()
		c = open(t, dir, MinLimit)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*.segment")); len(names) != 4 {
		t.Errorf("got %d segments after ten restarts, want 4 as before", len(names))
	}
	for i := range 10 {
		if ref, plain := data(i+100, 100); !has(t, c, ref, plain) {
			t.Errorf("after a restart chunk %d is missing", i+100)
		}
	}
}

func TestCacheInAnOddDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[x]*?")
	c, refs := fill(t, dir)
	c.Close()
	if n := countThere(open(t, dir, MinLimit), refs); n != len(refs) {
		t.Errorf("after a restart: got %d chunks, want %d", n, len(refs))
	}
}

func TestCacheUnderConcurrency(t *testing.T) {
	c := open(t, t.TempDir(), MinLimit)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 60 {
				ref, plain := data((w*13+i)%100, 500_000)
				got := make([]byte, 1000)
				if c.Read(ref, 1234, got) && !bytes.Equal(got, plain[1234:2234]) {
					t.Error("Read: got wrong bytes")
				}
				c.Put(ref, plain)
			}
		})
	}
	wg.Wait()
	if used := c.Stats().Used; used > MinLimit {
		t.Errorf("got %d bytes used, want at most %d", used, MinLimit)
	}
}

func FuzzDecodeTable(f *testing.F) {
	s := &segment{path: filepath.Join(f.TempDir(), "x"), size: 1 << 20}
	s.add(chunk.Ref{ID: chunk.ID{1}, Length: 10}, 0)
	if err := s.writeTable(s.records, s.ids); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(s.path + ".table")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &segment{size: 1 << 20}
		if err := s.decodeTable(b); err != nil {
			return
		}
		for _, r := range s.records {
			if int64(r.offset)+recordSize(r.length) > s.size {
				t.Fatal("a table with a record beyond the segment was accepted")
			}
		}
	})
}

func BenchmarkCache(b *testing.B) {
	for _, length := range []int{4096, 64 << 10, 512 << 10} {
		c := open(b, b.TempDir(), 1<<30)
		ref, plain := data(1, length)
		b.Run(fmt.Sprintf("put-%d", length), func(b *testing.B) {
			b.SetBytes(int64(length))
			for i := 0; b.Loop(); i++ {
				ref := ref
				ref.ID = chunk.ID{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}
				c.Put(ref, plain)
			}
		})
		c.Put(ref, plain)
		b.Run(fmt.Sprintf("read-%d", length), func(b *testing.B) {
			b.SetBytes(int64(length))
			dst := make([]byte, length)
			for b.Loop() {
				if !c.Read(ref, 0, dst) {
					b.Fatal("the chunk is missing")
				}
			}
		})
		if err := c.active.file.Sync(); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("read-from-disk-%d", length), func(b *testing.B) {
			b.SetBytes(int64(length))
			dst := make([]byte, length)
			for b.Loop() {
				if err := unix.Fadvise(int(c.active.file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
					b.Fatal(err)
				}
				if !c.Read(ref, 0, dst) {
					b.Fatal("the chunk is missing")
				}
			}
		})
	}
}

// A read that waits for the disk has a buffer for one piece (pieceBlocks), not for the longest
// record.
func TestReadersHoldLittleMemory(t *testing.T) {
	c := open(t, t.TempDir(), MinLimit)
	ref, plain := data(1, chunk.MaxLength)
	c.Put(ref, plain)
	for _, length := range []int{4096, chunk.MaxLength} {
		dst := make([]byte, length)
		runtime.GC() // two collections empty the pools
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if !c.Read(ref, 0, dst) {
			t.Fatal("the chunk is missing")
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 128<<10 {
			t.Errorf("a read of %d bytes allocated %d bytes, want at most %d", length, took, 128<<10)
		}
	}
}
