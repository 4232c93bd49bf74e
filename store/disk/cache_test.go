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

// data is chunk n: its bytes and what names it.
func data(n, length int) (chunk.Ref, []byte) {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	b := make([]byte, length)
	_, _ = r.Read(b)
	return chunk.Ref{ID: chunk.Sum(b), Length: uint32(length)}, b
}

// open opens a cache, and returns when what was in it is loaded.
func open(t testing.TB, dir string, limit int64) *Cache {
	t.Helper()
	limits := Limits{Size: limit}
	return openSmall(t, dir, limits, segmentSizeOf(limits))
}

// openSmall opens a cache as open does, with a limit and segments that Open would not take. Its
// disk may be slow: it is not taken for one that hangs.
func openSmall(t testing.TB, dir string, limits Limits, segmentSize int64) *Cache {
	t.Helper()
	c := newCache(dir, limits, segmentSize, quiet)
	c.reads.patience, c.writes.patience = time.Minute, time.Minute
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	c.start(c.takeOver)
	t.Cleanup(func() { c.Close() })
	<-c.loaded
	return c
}

// crash ends a cache as kill -9 would.
func crash(c *Cache) {
	c.stop()
	c.stopped.Wait()
	for _, s := range c.all() {
		s.file.Close()
	}
	if c.spare != nil {
		c.spare.file.Close()
	}
	c.lock.Close()
}

// has tells whether the cache gives the whole chunk back, and fails on a wrong
// byte.
func has(t testing.TB, c *Cache, ref chunk.Ref, want []byte) bool {
	t.Helper()
	got := make([]byte, ref.Length)
	if !c.Read(ref, 0, got) {
		return false
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("chunk %s came back wrong", ref.ID.Short())
	}
	return true
}

func TestCacheGivesBackWhatWasPut(t *testing.T) {
	c := open(t, t.TempDir(), MinLimit)
	for i, length := range []int{1, 4095, 4096, 4097, 65536, chunk.MaxLength} {
		ref, plain := data(i, length)
		if c.Has(ref.ID) || has(t, c, ref, plain) {
			t.Errorf("%d bytes are here before they were put", length)
		}
		c.Put(ref, plain)
		if !c.Has(ref.ID) || !has(t, c, ref, plain) {
			t.Errorf("%d bytes are not here", length)
		}
		r := rand.New(rand.NewPCG(1, 1))
		for range 200 {
			from := r.IntN(length)
			to := from + r.IntN(length-from+1)
			got := make([]byte, to-from)
			if !c.Read(ref, from, got) || !bytes.Equal(got, plain[from:to]) {
				t.Fatalf("bytes %d to %d of %d came back wrong", from, to, length)
			}
		}
	}
	ref, _ := data(3, 4097)
	for _, outside := range [][2]int{{-1, 1}, {4097, 1}, {4000, 98}} {
		if c.Read(ref, outside[0], make([]byte, outside[1])) {
			t.Errorf("%d bytes at %d of 4097 were read", outside[1], outside[0])
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
					t.Errorf("chunk %d is lost", i)
				}
			}
			again.Put(data(100, 5000))
			if ref, plain := data(100, 5000); !has(t, again, ref, plain) {
				t.Error("the reopened cache takes nothing")
			}
		})
	}
}

func TestCacheIsOneProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, MinLimit)
	if _, err := Open(dir, Limits{Size: MinLimit}, quiet); err == nil {
		t.Error("the cache was opened twice")
	}
	if _, err := Open(t.TempDir(), Limits{Size: MinLimit - 1}, quiet); err == nil {
		t.Error("a limit that is too small was accepted")
	}
}

// diskUse returns what a directory takes of the disk, as du does.
func diskUse(t testing.TB, dir string) (total int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(entries, nil) {
		path := dir
		if name != nil {
			path = filepath.Join(dir, name.Name())
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err == nil { // else it was evicted
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
				t.Fatalf("what is used all the time was evicted after %d chunks", i)
			}
		} else if i == 0 {
			c.Put(first, firstPlain)
		}
		c.Put(data(i+1, 64<<10))
		if used := c.Stats().Used; used > limit {
			t.Fatalf("%d bytes used of %d", used, limit)
		}
	}
	if on := diskUse(t, dir); on > limit {
		t.Errorf("%d bytes on disk, limit %d", on, limit)
	}
	if ref, plain := data(250, 64<<10); !has(t, c, ref, plain) {
		t.Error("the latest chunk was evicted")
	}
	if ref, plain := data(15, 64<<10); has(t, c, ref, plain) {
		t.Error("an old chunk that nobody used is still here")
	}
	c.Prune()
	if s := c.Stats(); s.Used != 0 || s.Chunks != 0 {
		t.Errorf("pruned, but %+v", s)
	}
	smaller := t.TempDir()
	big := open(t, smaller, 2*MinLimit)
	for i := range 110 {
		big.Put(data(i, 1<<20))
	}
	big.Close()
	if used := open(t, smaller, MinLimit).Stats().Used; used > MinLimit {
		t.Errorf("reopened with a smaller limit: %d bytes used", used)
	}
}

// Tables count: of tiny chunks they are a quarter of what is on the disk.
func TestTablesCount(t *testing.T) {
	dir := t.TempDir()
	const limit = 128 << 10
	c := openSmall(t, dir, Limits{Size: limit}, 8<<10)
	for i := range 3_000 {
		c.Put(data(i, 20))
	}
	c.stop() // the owner has nothing more to write
	c.stopped.Wait()
	c.writeTables()
	if used, on := c.Stats().Used, diskUse(t, dir); on > limit || used < on || used > on+c.segmentSize {
		t.Errorf("%d bytes on disk, %d in the books, limit %d", on, used, limit)
	}
}

// What was used last stays, across restarts too; and these leave no small
// segments behind.
func TestRestartsKeepOrder(t *testing.T) {
	dir := t.TempDir()
	c, refs := fill(t, dir)
	countThere(c, refs[:2])
	c.Close()
	c = open(t, dir, MinLimit)
	if !c.evictNow() || countThere(c, refs[:2]) != 2 {
		t.Error("what was used last went first")
	}
	for i := range 10 {
		c.Put(data(i+100, 100))
		c.Close()
		c = open(t, dir, MinLimit)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*.segment")); len(names) != 4 {
		t.Errorf("%d segments after ten restarts, 4 before", len(names))
	}
	for i := range 10 {
		if ref, plain := data(i+100, 100); !has(t, c, ref, plain) {
			t.Errorf("chunk %d was lost at a restart", i)
		}
	}
}

func TestCacheInAnOddDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[x]*?")
	c, refs := fill(t, dir)
	c.Close()
	if n := countThere(open(t, dir, MinLimit), refs); n != len(refs) {
		t.Errorf("%d of %d chunks were found again", n, len(refs))
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
					t.Error("wrong bytes")
				}
				c.Put(ref, plain)
			}
		})
	}
	wg.Wait()
	if used := c.Stats().Used; used > MinLimit {
		t.Errorf("%d bytes used", used)
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
				t.Fatal("a record beyond the segment was accepted")
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
					b.Fatal("not here")
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
					b.Fatal("not here")
				}
			}
		})
	}
}

// Readers who wait for a disk hold what they read at a time, not the longest record.
func TestReadersHoldLittleMemory(t *testing.T) {
	c := open(t, t.TempDir(), MinLimit)
	ref, plain := data(1, chunk.MaxLength)
	c.Put(ref, plain)
	for _, length := range []int{4096, chunk.MaxLength} {
		dst := make([]byte, length)
		runtime.GC() // twice empties the pools
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if !c.Read(ref, 0, dst) {
			t.Fatal("not here")
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 128<<10 {
			t.Errorf("reading %d bytes took %d of memory", length, took)
		}
	}
}
