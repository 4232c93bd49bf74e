package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/test/testkit/eventually"
)

// The owner makes room ahead of need.
func TestOwnerMakesRoom(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 6400 << 10}, 100<<10)
	for i := range 400 {
		c.Put(data(i, 25_000))
		if i%50 == 49 {
			eventually.Holds(t, "there is room", func() bool {
				c.mu.RLock()
				defer c.mu.RUnlock()
				return !c.isTight(1)
			})
		}
	}
	if s := c.Stats(); s.Evicted == 0 || s.Failed > 0 {
		t.Errorf("got %d bytes evicted, %d failed writes; want some and none", s.Evicted, s.Failed)
	}
}

// The room depends on the free bytes of the disk. A cache alone stops at the low mark. If others
// fill the disk, the cache shrinks until the high mark is free, but not to nothing.
func TestRoomFor(t *testing.T) {
	const MB = 1 << 20
	for _, test := range []struct{ limit, used, free, low, high, want int64 }{
		{1000, 500, 900, 0, 0, 1000},
		{1000, 500, 900, 100, 150, 1000},
		{1000, 500, 300, 100, 150, 700},
		{1000, 500, 100, 100, 150, 500},
		{1000, 500, 99, 100, 150, 449},
		{1000, 500, 0, 100, 150, 350},
		{1000, 100, 0, 100, 150, 62},
		{1000, 0, 0, 100, 150, 62},
		{1000, 500, 99, 100, 50, 499}, // high below low counts as low
	} {
		s := &space{limits: Limits{Size: test.limit * MB}, segmentSize: MB, used: test.used * MB, free: test.free * MB}
		if got := s.roomFor(test.low*MB, test.high*MB) / MB; got != test.want {
			t.Errorf("%+v: got a room of %d, want %d", test, got, test.want)
		}
	}
	if s := (Space{Percent: 12.5}); s.Of(800) != 100 {
		t.Errorf("12.5 %% of 800: got %d, want 100", s.Of(800))
	}
}

// The files never take more than the limit, however many chunks are put and read at once.
func TestLimitHoldsAtEveryInstant(t *testing.T) {
	for name, pinned := range map[string]int{"": 0, "with pins": 40} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			const limit = 2 << 20
			c := openSmall(t, dir, Limits{Size: limit}, limit/16)
			var set Set
			for i := range pinned {
				ref, _ := data(i*7, 20_000)
				set.Add(ref)
			}
			if err := c.Pin(chunk.ID{1}, "x", &set); err != nil {
				t.Fatal(err)
			}
			var writers sync.WaitGroup
			for w := range 8 {
				writers.Go(func() {
					for i := range 250 {
						c.Put(data(i*(w%2*4+1)+w%3, 20_000))
						if used := c.Stats().Used; used > limit {
							t.Errorf("got %d bytes used, want at most %d", used, limit)
							return
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { writers.Wait(); close(done) }()
			for running := true; running; {
				select {
				case <-done:
					running = false
				default:
				}
				if on := diskUse(t, dir); on > limit {
					t.Fatalf("got %d bytes on disk, want at most %d", on, limit)
				}
			}
			if s := c.Stats(); s.Evicted == 0 || s.Chunks == 0 || s.Failed > 0 {
				t.Errorf("got %+v, want chunks, evictions, and no failed write", s)
			}
		})
	}
}

// Each of several smaller and smaller limits holds from the start on, also with pins.
func TestSmallerLimits(t *testing.T) {
	dir := t.TempDir()
	var set Set
	for limit := int64(8 << 20); limit >= 512<<10; limit /= 2 {
		c := openSmall(t, dir, Limits{Size: limit}, limit/16)
		if used := max(c.Stats().Used, diskUse(t, dir)); used > limit {
			t.Fatalf("got %d bytes used, want at most %d", used, limit)
		}
		for i := range 400 {
			c.Put(data(i, 30_000))
			if used := c.Stats().Used; used > limit {
				t.Fatalf("got %d bytes used, want at most %d", used, limit)
			}
		}
		if set.chunks == nil {
			for i := range 100 {
				ref, _ := data(i, 30_000)
				set.Add(ref)
			}
			if err := c.Pin(chunk.ID{}, "x", &set); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
	}
}

// Readers get the right bytes or none while chunks are evicted and put again.
func TestReadDuringEviction(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 1 << 20}, 1<<16)
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for i := range 1000 {
				ref, plain := data((i*7+w)%40, 10_000)
				got := make([]byte, 5000)
				if c.Read(ref, 2500, got) && !bytes.Equal(got, plain[2500:7500]) {
					t.Error("Read: got wrong bytes")
				}
				if w == 0 && i%20 == 0 {
					c.Prune()
				}
				c.Put(ref, plain)
			}
		})
	}
	work.Wait()
	if s := c.Stats(); s.Damaged > 0 || s.Unread > 0 || s.Hits == 0 {
		t.Errorf("got %+v, want hits, and no damaged or failed reads", s)
	}
}

// A working set of three times the cache's size is put or read in each round. Reads return the
// right bytes, and a chunk in constant use stays.
func TestWorkingSetThreeTimesTheSize(t *testing.T) {
	const limit, length, chunks = 4 << 20, 40_000, 3 * (4 << 20) / 40_000
	c := openSmall(t, t.TempDir(), Limits{Size: limit}, limit/32)
	hot, hotPlain := data(1_000_000, length)
	c.Put(hot, hotPlain)
	for range 3 {
		for i := range chunks {
			ref, plain := data(i, length)
			if !has(t, c, ref, plain) {
				c.Put(ref, plain)
				if !has(t, c, ref, plain) {
					t.Fatalf("chunk %d was put, but is missing", i)
				}
			}
			if i%5 == 0 && !has(t, c, hot, hotPlain) {
				t.Fatal("a chunk in constant use was evicted")
			}
		}
	}
	if s := c.Stats(); s.Failed > 0 || s.Evicted < 5*limit {
		t.Errorf("got %+v, want at least %d bytes evicted and no failed write", s, 5*limit)
	}
}

// A segment is removed as soon as no chunk in it is indexed.
func TestEmptySegmentsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	c, refs := fill(t, dir)
	used := c.Stats().Used
	path := c.sealed[0].path + ".segment"
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if n := countThere(c, refs); n != len(refs)-2 {
		t.Fatalf("got %d chunks left, want %d", n, len(refs)-2)
	}
	eventually.Holds(t, "the segment is gone", func() bool { return c.Stats().Used < used-80_000 })
	if _, err := os.Stat(path); err == nil {
		t.Error("the segment's file was not removed")
	}
}

// Somebody removes the cache's directory: open segments can still be read, and chunks are stored in
// a new directory.
func TestDirectoryIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c, refs := fill(t, dir)
	if err := errors.Join(os.Rename(dir, dir+"-gone"), os.RemoveAll(dir+"-gone")); err != nil {
		t.Fatal(err)
	}
	if n := countThere(c, refs); n != len(refs) {
		t.Errorf("got %d chunks, want %d", n, len(refs))
	}
	for i := range 10 {
		c.Put(data(100+i, 40_000))
	}
	made, _ := filepath.Glob(filepath.Join(dir, "*.segment"))
	if s := c.Stats(); s.Failed > 0 || len(made) == 0 {
		t.Errorf("got %+v, %d new segments; want no failed write, and segments", s, len(made))
	}
	c.Prune()
	if s := c.Stats(); s.Used != 0 {
		t.Errorf("after Prune: got %d bytes counted, want 0", s.Used)
	}
	for i := range 10 {
		ref, plain := data(200+i, 40_000)
		if c.Put(ref, plain); !has(t, c, ref, plain) {
			t.Errorf("chunk %d is missing", i)
		}
	}
}
