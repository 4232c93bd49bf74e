package survey

import (
	"io"
	"sort"
)

// place is a place in the tar stream, and the place in the blob that belongs to it, both in bytes.
type place struct{ plain, blob int64 }

// entry is a place at which decoding can begin.
type entry struct {
	place
	bits   uint8  // as in layer.Unit
	window []byte // as in layer.Unit
}

// grain is the number of plain bytes by which places are apart, so that a stream of tiny parts
// costs no memory.
const grain = 4 << 10

// places has the places at which decoding can begin and end, in the part of a stream that is still
// asked for.
type places struct {
	entries []entry
	ends    []place
}

// addEntry adds a place that is at least a grain behind the previous one.
func (p *places) addEntry(e entry) {
	if n := len(p.entries); n == 0 || e.plain-p.entries[n-1].plain >= grain {
		p.entries = append(p.entries, e)
	}
}

func (p *places) addEnd(end place) {
	n := len(p.ends)
	switch {
	case n > 0 && (end.blob == p.ends[n-1].blob || n > 1 && p.ends[n-1].plain-p.ends[n-2].plain < grain):
		p.ends[n-1] = end
	default:
		p.ends = append(p.ends, end)
	}
}

// entry implements stream.
func (p *places) entry(from int64) entry { return p.entries[p.before(from)] }

// before returns the number of the last entry at or before from.
func (p *places) before(from int64) int {
	return max(0, sort.Search(len(p.entries), func(i int) bool { return p.entries[i].plain > from })-1)
}

// end implements stream.
func (p *places) end(to int64) (place, bool) {
	i := p.after(to)
	if i == len(p.ends) {
		return place{}, false
	}
	return p.ends[i], true
}

func (p *places) after(to int64) int {
	return sort.Search(len(p.ends), func(i int) bool { return p.ends[i].plain >= to })
}

// drop implements stream.
func (p *places) drop(before int64) {
	if i := p.before(before); i > 0 {
		n := copy(p.entries, p.entries[i:])
		clear(p.entries[n:])
		p.entries = p.entries[:n]
	}
	if i := p.after(before); i > 0 {
		p.ends = p.ends[:copy(p.ends, p.ends[i:])]
	}
}

// plainStream is an uncompressed layer.
type plainStream struct{ io.Reader }

func (plainStream) entry(from int64) entry     { return entry{place: place{from, from}} }
func (plainStream) end(to int64) (place, bool) { return place{to, to}, true }
func (plainStream) drop(int64)                 {}
func (plainStream) close()                     {}
