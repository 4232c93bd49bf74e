package disk

import "slices"

// place is where a chunk lies.
type place struct {
	segment *segment
	offset  uint32 // of its record, in bytes
}

// index maps chunks to places. It refers to segments by slot: without pointers it is smaller, and
// the garbage collector does not scan it. The cache's mu guards it.
type index struct {
	spots    map[key]spot
	segments []*segment // by slot; nil: the slot is free
}

// spot is the index's form of a place.
type spot struct{ slot, offset uint32 }

// indexOf returns an index with room for a number of chunks.
func indexOf(chunks int64) index { return index{spots: make(map[key]spot, chunks)} }

// include gives the segment a slot, which it has until exclude.
func (x *index) include(s *segment) {
	free := slices.Index(x.segments, nil)
	if free < 0 {
		free = len(x.segments)
		x.segments = append(x.segments, nil)
	}
	x.segments[free], s.slot = s, uint32(free)
}

// exclude frees the segment's slot. No place may refer to it any more.
func (x *index) exclude(s *segment) { x.segments[s.slot] = nil }

// at returns where a chunk lies, and whether it is known.
func (x *index) at(k key) (p place, ok bool) {
	at, ok := x.spots[k]
	if ok {
		p = place{x.segments[at.slot], at.offset}
	}
	return p, ok
}

func (x *index) has(k key) bool {
	_, ok := x.spots[k]
	return ok
}

// lies reports whether the chunk with key k lies at p.
func (x *index) lies(k key, p place) bool {
	at, ok := x.spots[k]
	return ok && at.offset == p.offset && x.segments[at.slot] == p.segment
}

// set notes where a chunk lies. It replaces an earlier place of the chunk.
func (x *index) set(k key, p place) {
	if old, ok := x.at(k); ok {
		old.segment.lost()
	}
	x.spots[k] = spot{p.segment.slot, p.offset}
	p.segment.live++
}

// unset removes a chunk from the index if it lies at p, and reports whether it did. The chunk may
// lie elsewhere by now.
func (x *index) unset(k key, p place) bool {
	if !x.lies(k, p) {
		return false
	}
	delete(x.spots, k)
	p.segment.lost()
	return true
}

func (x *index) len() int64 { return int64(len(x.spots)) }
