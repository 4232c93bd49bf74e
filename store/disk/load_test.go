package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/test/testkit/eventually"
)

// leftBy returns a directory in which a previous process has left chunks of 40,000 bytes, in
// several segments.
func leftBy(t *testing.T) (dir string, chunks int) {
	t.Helper()
	dir, chunks = t.TempDir(), 150
	c := openSmall(t, dir, Limits{Size: 16 << 20}, 1<<20)
	for i := range chunks {
		c.Put(data(i, 40_000))
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, chunks
}

// Chunks that are not loaded yet are missing, and can be put. A chunk that the previous process
// stored and that is put again counts once.
func TestCacheIsUsedWhileItLoads(t *testing.T) {
	dir, chunks := leftBy(t)
	c := newSmall(dir, Limits{Size: 16 << 20}, 1<<20)
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	on := diskUse(t, dir)
	if s := c.Stats(); s.Chunks != 0 || s.Loading == 0 || s.Used < s.Loading || s.Used > on ||
		on > s.Used+directoryCost {
		t.Errorf("before loading: got %d bytes on disk, %+v; want no chunks, and about as many bytes used", on, s)
	}
	if err := c.Short(); err == nil {
		t.Error("Short of a cache that loads: got nil")
	}
	for _, i := range []int{0, chunks - 1, chunks} { // in the first and the last segment, and a new one
		ref, plain := data(i, 40_000)
		if c.Has(ref.ID) || has(t, c, ref, plain) {
			t.Errorf("chunk %d is cached before anything was loaded", i)
		}
		c.Put(ref, plain)
		if !has(t, c, ref, plain) {
			t.Errorf("chunk %d was not stored", i)
		}
	}
	c.start(c.takeOver)
	t.Cleanup(func() { c.Close() })
	<-c.loaded
	if s := c.Stats(); s.Chunks != int64(chunks)+1 || s.Loading != 0 || s.Damaged+s.Failed > 0 {
		t.Errorf("after loading: got %+v, want %d chunks and no faults", s, chunks+1)
	}
	if n := countRange(t, c, 0, chunks+1, 40_000); n != chunks+1 {
		t.Errorf("got %d chunks, want %d", n, chunks+1)
	}
	live := 0
	for _, s := range c.segments() {
		live += s.live
	}
	if live != chunks+1 {
		t.Errorf("the segments count %d live records, want %d", live, chunks+1)
	}
	if err := c.Short(); err != nil {
		t.Error(err)
	}
}

// Nothing is evicted before all is loaded, and the limit holds.
func TestFullCacheWhileItLoads(t *testing.T) {
	const limit, segment = 4 << 20, 64 << 10
	dir := t.TempDir()
	c := openSmall(t, dir, Limits{Size: limit}, segment)
	for i := range 200 {
		c.Put(data(i, 20_000))
	}
	eventually.Holds(t, "there is room for further chunks", func() bool {
		c.mu.RLock()
		defer c.mu.RUnlock()
		return !c.isTight(1)
	})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = newSmall(dir, Limits{Size: limit}, segment)
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	before := c.Stats().Loading
	for i := range 200 {
		c.Put(data(1000+i, 20_000))
	}
	s, on := c.Stats(), diskUse(t, dir)
	if s.Chunks == 0 || s.Failed > 0 || s.Evicted > 0 || s.Loading != before || !s.OffUntil.IsZero() || on > limit {
		t.Errorf("got %d bytes on disk, %+v; want at most %d, some chunks, and no eviction or failure", on, s, limit)
	}
	c.start(c.takeOver)
	t.Cleanup(func() { c.Close() })
	<-c.loaded
	c.Put(data(2000, 20_000))
	if ref, plain := data(2000, 20_000); !has(t, c, ref, plain) {
		t.Error("a full cache stores nothing after loading")
	}
}

// Close during loading loses no chunk, and not the order in which the segments were used.
func TestCloseWhileLoading(t *testing.T) {
	dir, chunks := leftBy(t)
	c := newSmall(dir, Limits{Size: 16 << 20}, 1<<20)
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	oldest, l := c.leftovers[0].path, &loader{Cache: c}
	ended, stop := context.WithCancel(t.Context())
	stop()
	for range 2 {
		l.loadNext(t.Context())
	}
	c.start(func(context.Context) { l.run(ended) })
	if n := len(c.leftovers); n == 0 {
		t.Fatal("got a loaded cache, want one that still loads")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = openSmall(t, dir, Limits{Size: 16 << 20}, 1<<20)
	if got := c.byAge()[0].path; got != oldest {
		t.Errorf("the least recently used segment: got %s, want %s", got, oldest)
	}
	if n := countRange(t, c, 0, chunks, 40_000); n != chunks {
		t.Errorf("got %d chunks, want %d", n, chunks)
	}
}

// BenchmarkOpen opens caches of many chunks of 64 KiB. Their tables are in the page cache, and
// their segments are sparse. B/chunk is the memory in use when all chunks are known. peak-B/chunk
// is the largest memory until then, garbage included.
func BenchmarkOpen(b *testing.B) {
	for _, chunks := range []int{1 << 20, 4 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("chunks=%d", chunks), func(b *testing.B) {
			dir := b.TempDir()
			limits := Limits{Size: 2 * int64(chunks) * (64 << 10)}
			makeSegments(b, dir, chunks)
			var opened, known, peak, after time.Duration
			for b.Loop() {
				before := collected()
				most := watchHeap(b)
				begun := time.Now()
				c, err := Open(dir, limits, quiet)
				if err != nil {
					b.Fatal(err)
				}
				opened = time.Since(begun)
				<-c.loaded
				known = time.Since(begun)
				peak = time.Duration(most() - before)
				after = time.Duration(collected() - before)
				if n := c.Stats().Chunks; n != int64(chunks) {
					b.Fatalf("%d of %d chunks are known", n, chunks)
				}
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(opened.Microseconds()), "open-µs")
			b.ReportMetric(known.Seconds(), "known-s")
			b.ReportMetric(float64(peak)/float64(chunks), "peak-B/chunk")
			b.ReportMetric(float64(after)/float64(chunks), "B/chunk")
		})
	}
}

// makeSegments makes sparse segments of 2 GiB, with tables that list chunks.
func makeSegments(b *testing.B, dir string, chunks int) {
	const length = 64 << 10
	var id [chunk.Size]byte
	for n := uint64(0); chunks > 0; n++ {
		s := &segment{path: segmentPath(dir, n)}
		for ; chunks > 0 && s.size+recordSize(length) < 1<<31; chunks-- {
			binary.LittleEndian.PutUint64(id[:], uint64(chunks)*0x9e3779b97f4a7c15)
			s.add(chunk.Ref{ID: id, Length: length}, uint32(s.size))
			s.size += recordSize(length)
		}
		err := os.WriteFile(s.path+".segment", nil, 0o600)
		if err := errors.Join(err, os.Truncate(s.path+".segment", s.size), s.writeTable(s.records, s.ids)); err != nil {
			b.Fatal(err)
		}
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.table"))
	if err != nil {
		b.Fatal(err)
	}
	for _, table := range tables {
		if _, err := os.ReadFile(table); err != nil {
			b.Fatal(err)
		}
	}
}

// heap returns the bytes of all objects on the heap, garbage included.
func heap() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

func collected() int64 {
	runtime.GC()
	runtime.GC()
	return heap()
}

// watchHeap samples the heap until the returned function is called, which returns the maximum.
func watchHeap(b *testing.B) (most func() int64) {
	stop, result := make(chan struct{}), make(chan int64)
	go func() {
		most := int64(0)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, heap())
			select {
			case <-tick.C:
			case <-stop:
				result <- most
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-result
	}
}
