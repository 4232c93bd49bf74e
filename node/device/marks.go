package device

import "sync/atomic"

// marks are a bit for each extent of a device: of those whose chunk was asked for
// before anybody read it, until somebody does. They take no memory before the first
// is set.
type marks struct {
	words atomic.Pointer[[]atomic.Uint64]
}

// set marks one of so many extents, and tells whether it was not yet.
func (m *marks) set(extent, extents int64) bool {
	words := m.words.Load()
	if words == nil {
		fresh := make([]atomic.Uint64, (extents+63)/64)
		m.words.CompareAndSwap(nil, &fresh)
		words = m.words.Load()
	}
	bit := uint64(1) << (extent % 64)
	return (*words)[extent/64].Or(bit)&bit == 0
}

// clear takes a mark away, and tells whether there was one.
func (m *marks) clear(extent int64) bool {
	words := m.words.Load()
	if words == nil {
		return false
	}
	word, bit := &(*words)[extent/64], uint64(1)<<(extent%64)
	return word.Load()&bit != 0 && word.And(^bit)&bit != 0
}

// yield counts what was asked for before anybody read it, and what of it was read.
type yield struct {
	fetched atomic.Int64 // encoded, that came for this alone; of startup packs
	brought atomic.Int64 // plain, of chunks
	used    atomic.Int64 // of those, that were read
}

// Yield says what came of fetching before anybody reads.
type Yield struct {
	Fetched int64 `json:"fetchedBytes,omitempty"` // encoded; of what lay around a miss it is not known
	Brought int64 `json:"broughtBytes"`           // plain, of chunks that were not here
	Used    int64 `json:"usedBytes"`              // of those, that were read later
}

func (y *yield) stats() Yield { return Yield{y.fetched.Load(), y.brought.Load(), y.used.Load()} }

// expect marks extents whose chunks are not here and were asked for.
func (d *Device) expect(extents []int64, m *marks, y *yield) {
	for _, i := range extents {
		if e, err := d.extents.Extent(i); err == nil && !d.chunks.Has(e.ID) && m.set(i, d.extents.Extents) {
			y.brought.Add(int64(e.Length))
		}
	}
}

// use notes that an extent is read.
func (d *Device) use(p part) {
	if d.streamed.clear(p.extent) {
		d.ahead.streamed.used.Add(int64(p.ref.Length))
	}
	d.around.use(p, &d.ahead.around)
}
