package disk

import (
	"errors"
	"sync/atomic"
	"testing"

	"lighter/format/chunk"
)

// External files count within the limit. An external file is refused if there is no room for it
// without an eviction. If the cache needs room, external files are removed before chunks are
// evicted.
func TestExternalFiles(t *testing.T) {
	const limit = 16 << 20
	c := openSmall(t, t.TempDir(), Limits{Size: limit}, 1<<20)
	if err := c.Reserve(limit/2 + 1); !errors.Is(err, errHalf) {
		t.Errorf("Reserve of more than half: got %v, want errHalf", err)
	}
	if err := c.Reserve(4 << 20); err != nil {
		t.Fatal(err)
	}
	var freed, yields atomic.Int64
	freed.Store(4 << 20)
	c.OnShort(func() int64 {
		yields.Add(1)
		n := freed.Swap(0)
		c.Release(n)
		return n
	})
	var refs []chunk.Ref
	put := func(until int64) {
		t.Helper()
		for c.Stats().Used < until && yields.Load() == 0 && len(refs) < 400 {
			ref, b := data(len(refs), 100_000)
			c.Put(ref, b)
			refs = append(refs, ref)
		}
	}
	put(8 << 20)
	if s := c.Stats(); s.External != 4<<20 || s.Used < 8<<20 || yields.Load() > 0 {
		t.Errorf("half full: got %+v, yielded %d times; want an external file of 4 MiB, never yielded",
			s, yields.Load())
	}
	if err := c.Reserve(4 << 20); !errors.Is(err, ErrFull) || c.HasRoom(4<<20) || !c.HasRoom(1<<20) {
		t.Errorf("Reserve of too much: got %v; HasRoom of as much: %t, of less: %t", err, c.HasRoom(4<<20),
			c.HasRoom(1<<20))
	}
	put(limit)
	if s := c.Stats(); yields.Load() == 0 || s.External != 0 || s.Used > limit {
		t.Errorf("full: got %+v, yielded %d times; want no external file, yielded", s, yields.Load())
	}
	for _, ref := range refs {
		if !c.Has(ref.ID) {
			t.Fatal("a chunk was evicted before the external file")
		}
	}
}

// If there are too many segments, no external file is removed: that would not reduce their number.
func TestExternalFilesAndManySegments(t *testing.T) {
	c := openSmall(t, t.TempDir(), Limits{Size: 16 << 20}, 1<<20)
	if err := c.Reserve(1 << 20); err != nil {
		t.Fatal(err)
	}
	c.OnShort(func() int64 {
		n := c.External.bytes
		c.Release(n)
		return n
	})
	for n := range 40 { // each in a small segment
		ref, b := data(n, 1000)
		c.Put(ref, b)
		c.sealAll()
	}
	c.maintain(t.Context())
	if s := c.Stats(); s.External != 1<<20 || c.tooMany() {
		t.Errorf("got %+v, too many segments: %t; want an external file of 1 MiB, false", s, c.tooMany())
	}
}

// Pins and external files together leave room for records that move.
func TestPinsAndExternalFiles(t *testing.T) {
	const limit = 16 << 20
	c := openSmall(t, t.TempDir(), Limits{Size: limit}, 1<<20)
	if err := c.Reserve(6 << 20); err != nil {
		t.Fatal(err)
	}
	set := func(bytes int) *Set {
		s := &Set{}
		for n := range bytes / 100_000 {
			ref, _ := data(n, 100_000)
			s.Add(ref)
		}
		return s
	}
	if err := c.Pin(chunk.Sum([]byte("a")), "a", set(6<<20)); err == nil {
		t.Error("Pin of more than half of what external files leave: got no error")
	}
	if err := c.Pin(chunk.Sum([]byte("a")), "a", set(48<<20/10)); err != nil {
		t.Error(err)
	}
	if err := c.Reserve(2 << 20); !errors.Is(err, errHalf) {
		t.Errorf("Reserve of the pins' room: got %v, want errHalf", err)
	}
}

// An absent cache counts external files that exist already.
func TestExternalFilesOfAnAbsentCache(t *testing.T) {
	c := Absent(errors.New("no disk"), t.TempDir(), Limits{Size: MinLimit}, quiet)
	defer c.Close()
	c.Count(1 << 20)
	if err := c.Reserve(1); err == nil || c.HasRoom(1) {
		t.Errorf("Reserve of an absent cache: got error %v, want an error and no room", err)
	}
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.External != 1<<20 || s.Used != 1<<20 {
		t.Errorf("once the cache is open: got %+v, want 1 MiB used, all of it external", s)
	}
}
