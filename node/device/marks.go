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

// expect notes that extents whose chunks are not here come with a startup pack, and
// returns their bytes, plain.
func (d *Device) expect(extents []int64) (plain int64) {
	z := &d.stream.credit.zone
	for _, i := range extents {
		e, err := d.extents.Extent(i)
		if err != nil || d.chunks.Has(e.ID) {
			continue
		}
		plain += int64(e.Length) // again, if it is gone since
		if z.marks.set(i, d.extents.Extents) {
			d.ahead.streamed.brought.Add(int64(e.Length))
		}
	}
	z.brought.Add(plain)
	return plain
}

// use notes that an extent is read.
func (d *Device) use(p part) {
	if d.stream.credit.zone.use(p, &d.ahead.streamed) {
		d.stream.credit.free()
	}
	d.around.file.use(p, &d.ahead.around)
	d.around.beside.use(p, &d.ahead.around)
}

// zone is one kind of what comes to a device before anybody reads it.
type zone struct {
	marks   marks
	brought atomic.Int64 // plain
	used    atomic.Int64
}

// debt is how much more came than so many times what was read of it.
func (z *zone) debt(part int64) int64 { return z.brought.Load() - part*z.used.Load() }

// forget begins to count anew.
func (z *zone) forget() {
	z.brought.Store(0)
	z.used.Store(0)
}

// use notes that an extent is read, and tells whether it came that way.
func (z *zone) use(p part, all *yield) bool {
	came := z.marks.clear(p.extent)
	if came {
		z.used.Add(int64(p.ref.Length))
		all.used.Add(int64(p.ref.Length))
	}
	return came
}
