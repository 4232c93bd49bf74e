package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"lighter/format/chunk"
)

// eventually waits for the owner to have done something.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 3000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it never came to be that " + what)
}

// The owner makes room before anybody needs it.
func TestOwnerMakesRoom(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 6400 << 10}, 100<<10)
	for i := range 400 {
		c.Put(data(i, 25_000))
		if i%50 == 49 {
			eventually(t, "there is room", func() bool {
				c.mu.RLock()
				defer c.mu.RUnlock()
				return !c.isTight(1)
			})
		}
	}
	if s := c.Stats(); s.Evicted == 0 || s.Failed > 0 {
		t.Errorf("evicted %d bytes, %d failed writes", s.Evicted, s.Failed)
	}
}

// What the room is, by what is free of the disk. A cache that fills the disk
// itself stops at low; others that do make it give way until high, but not of all.
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
			t.Errorf("%+v: the room is %d", test, got)
		}
	}
	if s := (Space{Percent: 12.5}); s.Of(800) != 100 {
		t.Errorf("12.5 %% of 800 are %d", s.Of(800))
	}
}

// However many put at once, and whatever they read at that, the files never take
// more than the limit.
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
							t.Errorf("%d bytes used of %d", used, limit)
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
					t.Fatalf("%d bytes on disk of %d", on, limit)
				}
			}
			if s := c.Stats(); s.Evicted == 0 || s.Chunks == 0 || s.Failed > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Ever smaller limits, pins included: each holds from the start on.
func TestSmallerLimits(t *testing.T) {
	dir := t.TempDir()
	var set Set
	for limit := int64(8 << 20); limit >= 512<<10; limit /= 2 {
		c := openSmall(t, dir, Limits{Size: limit}, limit/16)
		if used := max(c.Stats().Used, diskUse(t, dir)); used > limit {
			t.Fatalf("%d bytes used of %d", used, limit)
		}
		for i := range 400 {
			c.Put(data(i, 30_000))
			if used := c.Stats().Used; used > limit {
				t.Fatalf("%d bytes used of %d", used, limit)
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

// Who reads while all is evicted again and again gets the right bytes or none.
func TestReadersOfWhatIsEvicted(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 1 << 20}, 1<<16)
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for i := range 1000 {
				ref, plain := data((i*7+w)%40, 10_000)
				got := make([]byte, 5000)
				if c.Read(ref, 2500, got) && !bytes.Equal(got, plain[2500:7500]) {
					t.Error("wrong bytes")
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
		t.Errorf("%+v", s)
	}
}

// A working set three times the cache's size streams through: each round every
// chunk is put or read, right, and those in use stay.
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
					t.Fatalf("chunk %d was put, and is not there", i)
				}
			}
			if i%5 == 0 && !has(t, c, hot, hotPlain) {
				t.Fatal("what is read all the time was evicted")
			}
		}
	}
	if s := c.Stats(); s.Failed > 0 || s.Evicted < 5*limit {
		t.Errorf("%+v", s)
	}
}

// A segment in which nothing is of use any more goes at once.
func TestEmptySegmentsGo(t *testing.T) {
	dir := t.TempDir()
	c, refs := fill(t, dir)
	used := c.Stats().Used
	path := c.sealed[0].path + ".segment"
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if n := countThere(c, refs); n != len(refs)-2 {
		t.Fatalf("%d chunks are left", n)
	}
	eventually(t, "the segment is gone", func() bool { return c.Stats().Used < used-80_000 })
	if _, err := os.Stat(path); err == nil {
		t.Error("its file is still there")
	}
}

// The directory is removed under the cache's feet: what is open is still read, and
// what comes goes into a new one.
func TestDirectoryIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c, refs := fill(t, dir)
	if err := errors.Join(os.Rename(dir, dir+"-gone"), os.RemoveAll(dir+"-gone")); err != nil {
		t.Fatal(err)
	}
	if n := countThere(c, refs); n != len(refs) {
		t.Errorf("%d of %d chunks can be read", n, len(refs))
	}
	for i := range 10 {
		c.Put(data(100+i, 40_000))
	}
	made, _ := filepath.Glob(filepath.Join(dir, "*.segment"))
	if s := c.Stats(); s.Failed > 0 || len(made) == 0 {
		t.Errorf("%+v", s)
	}
	c.Prune()
	if s := c.Stats(); s.Used != 0 {
		t.Errorf("of what is gone %d bytes are left in the books", s.Used)
	}
	for i := range 10 {
		ref, plain := data(200+i, 40_000)
		if c.Put(ref, plain); !has(t, c, ref, plain) {
			t.Errorf("chunk %d is not there", i)
		}
	}
}
