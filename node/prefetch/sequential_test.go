package prefetch

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
)

// longestFile returns the extents of the longest file: from first up to, but not including, end.
func longestFile(t *testing.T, extents *index.Map) (first, end int64) {
	t.Helper()
	var begin, from int64 // first extent and offset of the current file
	var longest int64     // size of the longest file so far, in bytes
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.First {
			begin, from = i, e.Offset
		}
		if size := e.End() - from; size > longest {
			first, end, longest = begin, i+1, size
		}
	}
	return first, end
}

// For a sequential reader of a file, no chunk of another file is requested.
func TestSequentialStaysWithinTheFile(t *testing.T) {
	d, s := shelved(t, Options{})
	clear(s.cached)
	first, end := longestFile(t, d.Extents())
	from, to := extentOf(t, d, first).Offset, extentOf(t, d, end-1).End()
	for offset := from; offset < to-4096; offset += 4096 {
		if _, err := d.ReadAt(t.Context(), make([]byte, 4096), offset); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.requests.refs) == 0 {
		t.Fatal("nothing was requested")
	}
	for _, ref := range d.requests.refs {
		found := false
		for i := first; i < end; i++ {
			found = found || extentOf(t, d, i).ID == ref.ID
		}
		if !found {
			t.Errorf("chunk %s was requested, want only chunks of the file", ref.ID.Short())
		}
	}
}

// For a sequential reader of a startup pack, nothing is requested of another startup pack before a
// trigger of that pack is read.
func TestSequentialLeavesOtherStarts(t *testing.T) {
	without, s := shelved(t, Options{})
	clear(s.cached)
	extents := without.Extents()
	first, end := longestFile(t, extents)
	middle := (first + end) / 2
	mine, others := chunk.Sum([]byte("mine")), chunk.Sum([]byte("others"))
	b := index.NewLocations(extents.ID())
	for i := range extents.Extents {
		e, _ := extents.Extent(i)
		if s.cached[e.ID] = i < middle; i < middle {
			b.Add(chunk.Unit{Pack: mine, N: uint32(i)})
		} else {
			b.Add(chunk.Unit{Pack: others, N: uint32(i)})
		}
	}
	n := extents.Extents
	b.Startup(index.Startup{Pack: mine, Units: slices.Repeat([]uint32{1000}, int(n)), AtMount: true})
	b.Startup(index.Startup{Pack: others, Units: slices.Repeat([]uint32{1000}, int(n)), Triggers: []int64{n - 1}})
	encoded := b.Encode()
	locations, err := index.OpenLocations(bytes.NewReader(encoded), int64(len(encoded)), extents.ID(), n)
	if err != nil {
		t.Fatal(err)
	}
	d := s.open(extents, locations, Options{Limit: plenty})
	defer d.Close()
	d.Begin()
	for d.startup.isRunning() { // not for long: the whole pack is cached
		time.Sleep(time.Millisecond)
	}
	from, to := extentOf(t, d, first), extentOf(t, d, middle)
	for offset := from.Offset; offset < to.Offset; offset += 4096 {
		if _, err := d.ReadAt(t.Context(), make([]byte, min(4096, to.Offset-offset)), offset); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.requests.refs) > 0 {
		t.Errorf("%d chunks that only other starts read were requested, want none", len(d.requests.refs))
	}
}

// For a sequential reader of startup packs, only chunks of wanted startup packs are requested, and
// nothing while the packs are being streamed.
func TestSequentialInStartupPacks(t *testing.T) {
	h := newStartHub(t)
	synctest.Test(t, func(t *testing.T) {
		b := openStart(t, h, Options{Limit: plenty})
		read := func(group int) (requested [3]int) {
			for i := range h.extents.Extents {
				if e, err := h.extents.Extent(i); err == nil && h.group[e.ID] == group {
					b.cache.Put(chunk.Ref{ID: e.ID, Length: e.Length}, h.image[e.Offset:e.End()])
					if _, err := b.ReadAt(t.Context(), make([]byte, e.Length), e.Offset); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, ref := range b.requests.refs {
				requested[h.group[ref.ID]]++
			}
			b.requests.drop()
			return requested
		}
		h.hang = true
		b.Begin()
		synctest.Wait()
		if requested := read(0); !b.startup.isRunning() || requested != [3]int{} {
			t.Errorf("during a stream %v chunks are requested, want none", requested)
		}
		b.EndStartup()
		if requested := read(1); requested[0] > 0 || requested[1] == 0 || requested[2] > 0 {
			t.Errorf("a reader of a wanted startup pack: %v chunks are requested, want some of pack 1 only", requested)
		}
		if requested := read(2); requested[2] == 0 {
			t.Errorf("a reader outside of startup packs: %v chunks are requested, want some", requested)
		}
		b.close(t)
	})
}
