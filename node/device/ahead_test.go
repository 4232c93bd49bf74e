package device

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

func TestDeviceReadsAheadWithinTheFile(t *testing.T) {
	d, s, _ := build(t)
	clear(s.here)
	// The longest file, read in pieces from its start.
	var first, size, begin int64
	for i := range d.extents.Extents {
		e, err := d.extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.First {
			begin = e.Offset
		}
		if e.End()-begin > size {
			first, size = begin, e.End()-begin
		}
	}
	for offset := first; offset < first+size-4096; offset += 4096 {
		if _, err := d.ReadAt(t.Context(), make([]byte, 4096), offset); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.wishes.refs) == 0 {
		t.Fatal("nothing was read ahead")
	}
	for _, ref := range d.wishes.refs {
		id := ref.ID
		found := false
		for i := range d.extents.Extents {
			e, _ := d.extents.Extent(i)
			found = found || e.ID == id && e.Offset >= first && e.Offset < first+size
		}
		if !found {
			t.Error("read ahead beyond the file")
		}
	}
}

// A reader of what a start reads gets nothing ahead of a startup pack that other starts
// read, until one of its triggers is.
func TestOtherStartsAreNotReadAhead(t *testing.T) {
	without, s, _ := build(t)
	clear(s.here)
	var first, begin, end, size int64 // extents of the longest file
	for i := range without.extents.Extents {
		e, err := without.extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.First {
			begin = i
		}
		if b, _ := without.extents.Extent(begin); e.End()-b.Offset > size {
			first, end, size = begin, i+1, e.End()-b.Offset
		}
	}
	middle := (first + end) / 2
	mine, others := chunk.Sum([]byte("mine")), chunk.Sum([]byte("others"))
	b := index.NewLocations(without.extents.ID())
	for i := range without.extents.Extents {
		e, _ := without.extents.Extent(i)
		if s.here[e.ID] = i < middle; i < middle {
			b.Add(chunk.Unit{Pack: mine, N: uint32(i)})
		} else {
			b.Add(chunk.Unit{Pack: others, N: uint32(i)})
		}
	}
	n := without.extents.Extents
	b.Startup(index.Startup{Pack: mine, Units: slices.Repeat([]uint32{1000}, int(n)), AtMount: true})
	b.Startup(index.Startup{Pack: others, Units: slices.Repeat([]uint32{1000}, int(n)), Triggers: []int64{n - 1}})
	encoded := b.Encode()
	locations, err := index.OpenLocations(bytes.NewReader(encoded), int64(len(encoded)), without.extents.ID(), n)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d := New(without.extents, locations, NewAhead(func() Chunks { return s }, AheadOptions{Limit: plenty}, log), log)
	defer d.Close()
	d.Begin()
	for d.stream.isRunning() { // all of it is here
		time.Sleep(time.Millisecond)
	}
	from, _ := d.extents.Extent(first)
	to, _ := d.extents.Extent(middle)
	for offset := from.Offset; offset < to.Offset; offset += 4096 {
		if _, err := d.ReadAt(t.Context(), make([]byte, min(4096, to.Offset-offset)), offset); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.wishes.refs) > 0 {
		t.Errorf("%d chunks that only others have read were read ahead", len(d.wishes.refs))
	}
}

func TestAheadFetchesWhatIsAsked(t *testing.T) {
	s := &shelf{warmed: map[chunk.ID]int{}}
	a := NewAhead(func() Chunks { return s }, AheadOptions{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	s.enough = func() bool { return len(s.warmed) == 100 }
	s.done = cancel
	w := &wishes{chunks: s}
	for i := range 100 {
		if !a.ask(w, chunk.Ref{ID: chunk.ID{byte(i)}}) {
			t.Fatal("no room")
		}
	}
	a.Run(ctx) // until all are warm
	if len(s.warmed) != 100 {
		t.Errorf("%d of 100 were fetched", len(s.warmed))
	}
}

// What a device that is gone wanted is not fetched.
func TestClosedDeviceWantsNothing(t *testing.T) {
	d, _, _ := build(t)
	other := &wishes{chunks: d.chunks}
	for i := range 10 {
		d.ahead.ask(d.wishes, chunk.Ref{ID: chunk.ID{byte(i)}})
		d.ahead.ask(other, chunk.Ref{ID: chunk.ID{byte(100 + i)}})
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if w, ref := d.ahead.next(t.Context()); w != other || ref.ID[0] != byte(100+i) {
			t.Errorf("%v", ref.ID)
		}
	}
	if len(d.ahead.queues) > 0 {
		t.Error("something is wanted")
	}
}

// Reading ahead on one device goes on while that on another is stuck, and what a
// device asks for is bounded.
func TestAheadIsFair(t *testing.T) {
	s := &shelf{warmed: map[chunk.ID]int{}}
	a := NewAhead(func() Chunks { return s }, AheadOptions{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	blocked, other := &wishes{chunks: never{s}}, &wishes{chunks: s}
	for i := range 2 * aheadQueue {
		if room := a.ask(blocked, chunk.Ref{ID: chunk.Sum([]byte{byte(i), byte(i >> 8)})}); room != (i < aheadQueue) {
			t.Fatalf("room for %d: %v", i+1, room)
		}
	}
	for i := range 100 {
		a.ask(other, chunk.Ref{ID: chunk.ID{byte(i)}})
	}
	s.enough = func() bool { return len(s.warmed) == 100 }
	s.done = cancel
	a.Run(ctx) // until all of the other's are warm
	if len(s.warmed) != 100 {
		t.Errorf("%d of 100 were fetched", len(s.warmed))
	}
}

// Who reads what starts read gets nothing else ahead of him: of startup packs, and only
// when the stream does not bring it.
func TestReadingAheadOfStarts(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBegun(t, h, AheadOptions{Limit: plenty})
		read := func(group int) (asked [3]int) {
			for i := range h.extents.Extents {
				if e, err := h.extents.Extent(i); err == nil && h.group[e.ID] == group {
					b.cache.Put(chunk.Ref{ID: e.ID, Length: e.Length}, h.image[e.Offset:e.End()])
					if _, err := b.ReadAt(t.Context(), make([]byte, e.Length), e.Offset); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, ref := range b.wishes.refs {
				asked[h.group[ref.ID]]++
			}
			b.ahead.drop(b.wishes)
			return asked
		}
		h.hang = true
		b.stream.begin()
		synctest.Wait()
		if asked := read(0); !b.stream.isRunning() || asked != [3]int{} {
			t.Errorf("beside a stream %v are asked for", asked)
		}
		b.EndStream()
		if asked := read(1); asked[0] > 0 || asked[1] == 0 || asked[2] > 0 {
			t.Errorf("of a reader who does as others did %v are asked for", asked)
		}
		if asked := read(2); asked[2] == 0 {
			t.Errorf("of another %v", asked)
		}
		b.left(t)
	})
}
