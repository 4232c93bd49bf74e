package disk

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/test/testkit/eventually"
)

// The directory never takes more of the disk than the limit, whatever operations run at the same
// time, and however the cache ends and starts again. The cache still stores chunks.
func TestLimitAtEachMoment(t *testing.T) {
	limitAtEachMoment(t, t.TempDir())
}

func limitAtEachMoment(t *testing.T, dir string) {
	rounds := 6
	if os.Getenv("LIGHTER_SOAK") != "" {
		rounds = 60
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	before := int64(0)
	for round := range rounds {
		limit := int64(4<<20) + r.Int64N(12<<20)
		c := newSmall(dir, Limits{Size: limit}, limit/16)
		if err := c.open(); err != nil {
			t.Fatal(err)
		}
		c.start(c.takeOver)
		if limit < before { // the excess is evicted when all is loaded
			<-c.loaded
		}
		before = limit
		atOnce(t, c, r.Uint64())
		if t.Failed() {
			t.Fatalf("round %d, limit %d: got %+v", round, limit, c.Stats())
		}
		if r.IntN(2) == 0 {
			crash(c)
		} else if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// some returns a chunk of one of many sizes.
func some(r *rand.Rand) (chunk.Ref, []byte) {
	n := r.IntN(400)
	return data(n, 1+n*n*n%100_000)
}

func someSet(r *rand.Rand) *Set {
	set := &Set{}
	for range r.IntN(100) {
		ref, _ := some(r)
		set.Add(ref)
	}
	return set
}

// atOnce calls all methods of a cache at once, for a while.
func atOnce(t *testing.T, c *Cache, seed uint64) {
	var work sync.WaitGroup
	var over atomic.Bool
	begin := func(n uint64, do func(r *rand.Rand)) {
		work.Go(func() {
			for r := rand.New(rand.NewPCG(seed, n)); !over.Load() && !t.Failed(); {
				do(r)
			}
		})
	}
	for n := range uint64(3) {
		begin(n, func(r *rand.Rand) { c.Put(some(r)) })
	}
	begin(3, func(r *rand.Rand) {
		ref, plain := some(r)
		has(t, c, ref, plain)
	})
	begin(4, func(r *rand.Rand) {
		id := chunk.ID{byte(r.IntN(4))}
		if r.IntN(2) == 0 {
			_ = c.Pin(id, "x", someSet(r)) // it may exceed the bound of pins
		} else if _, err := c.Unpin(id); err != nil {
			t.Error(err)
		}
	})
	begin(5, func(r *rand.Rand) {
		if r.IntN(20) == 0 {
			c.Prune()
		}
		c.Evict(someSet(r))
		time.Sleep(time.Millisecond)
	})
	for range 100 {
		c.mu.Lock() // so that nothing grows meanwhile
		on, used := diskUse(t, c.dir), c.used
		c.mu.Unlock()
		if on > c.limits.Size || used > c.limits.Size {
			t.Errorf("got %d bytes on disk, %d counted, want at most %d", on, used, c.limits.Size)
		}
		time.Sleep(time.Millisecond)
	}
	over.Store(true)
	work.Wait()
	if s := c.Stats(); s.Failed+s.Unread > 0 {
		t.Errorf("got %+v, want no failed reads or writes", s)
	}
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range 50 {
		// A chunk that was cached before could be evicted between Put and Read.
		ref, plain := data(1000+i, 1+r.IntN(100_000))
		if c.Put(ref, plain); !has(t, c, ref, plain) {
			t.Error("a new chunk cannot be stored")
			return
		}
	}
}

// The cache still stores chunks if its limit was much larger when the segments were made and much
// of each was pinned.
func TestSmallerLimitWithPins(t *testing.T) {
	dir := t.TempDir()
	const length, limit = 20_000, 4_500_000 // two segments and a little more
	c := openSmall(t, dir, Limits{Size: 16 << 20}, 2<<20)
	set := &Set{}
	for i := range 624 {
		ref, plain := data(i, length)
		c.Put(ref, plain)
		if i%3 == 0 && i >= 300 {
			set.Add(ref)
		}
	}
	if err := c.Pin(chunk.ID{1}, "x", set); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c = openSmall(t, dir, Limits{Size: limit}, 256<<10)
	for i := range 600 {
		ref, plain := data(1000+i, length)
		if c.Put(ref, plain); !has(t, c, ref, plain) {
			t.Fatalf("chunk %d was not stored: %+v", i, c.Stats())
		}
	}
	if on := diskUse(t, dir); on > limit {
		t.Errorf("got %d bytes on disk, want at most %d", on, limit)
	}
}

// Bytes after the last valid record of a segment are freed, because they are not counted.
func TestTailOfASegmentIsFreed(t *testing.T) {
	dir := t.TempDir()
	c := openSmall(t, dir, Limits{Size: 16 << 20}, 1<<20)
	for i := range 150 {
		c.Put(data(i, 20_000))
	}
	crash(c)
	for _, s := range c.segments() {
		_ = os.Remove(s.path + ".table") // the first may have one
		file, err := os.OpenFile(s.path+".segment", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteAt(make([]byte, recordHeader), 5*recordSize(20_000))
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	c = openSmall(t, dir, Limits{Size: 16 << 20}, 1<<20)
	if n := countRange(t, c, 0, 150, 20_000); n != 15 {
		t.Errorf("got %d chunks, want 15", n)
	}
	if on, used := diskUse(t, dir), c.Stats().Used; on > used+directoryCost {
		t.Errorf("got %d bytes on disk, want hardly more than the %d that are counted", on, used)
	}
}

// Segments stay few, however often they are sealed early: each is an open file.
func TestSegmentsStayFew(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 4 << 20}, 256<<10)
	set := setOf(0, 300, 100)
	if err := c.Pin(chunk.ID{1}, "x", set); err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		c.Put(data(i, 100))
		c.Evict(&Set{})
	}
	eventually.Holds(t, "segments are few", func() bool {
		c.mu.RLock()
		defer c.mu.RUnlock()
		return len(c.segments()) <= 34
	})
	if n := countRange(t, c, 0, 300, 100); n != 300 {
		t.Errorf("got %d pinned chunks, want 300", n)
	}
}
