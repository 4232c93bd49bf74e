package prefetch

import (
	"sync/atomic"

	"lighter/format/index"
	"lighter/node/device"
)

// Yield says how much was fetched speculatively, and how much of it was read.
type Yield struct {
	Fetched int64 `json:"fetchedBytes,omitempty"` // compressed bytes received; 0 for neighbours
	Added   int64 `json:"prefetchedBytes"`        // uncompressed bytes of the chunks that were requested ahead of reads
	Used    int64 `json:"usedBytes"`              // the part of Added that was read afterwards
}

// yield counts a Yield.
type yield struct{ fetched, added, used atomic.Int64 }

func (y *yield) stats() Yield { return Yield{y.fetched.Load(), y.added.Load(), y.used.Load()} }

// account counts the bytes that were requested speculatively for one device, and how many of them
// were read.
type account struct {
	extents *index.Map
	total   *yield // the sum of all devices
	marks   marks  // extents whose chunks were requested and not read since

	added atomic.Int64 // uncompressed bytes that were requested
	used  atomic.Int64 // uncompressed bytes that were read
}

func newAccount(extents *index.Map, total *yield) account {
	return account{extents: extents, total: total}
}

// request marks an extent, of length bytes, as requested, and reports whether it was unmarked
// before. A read removes the mark.
func (a *account) request(extent int64, length uint32) bool {
	isNew := a.marks.set(extent, a.extents.Extents)
	if isNew {
		a.total.added.Add(int64(length))
	}
	return isNew
}

// charge is request, and counts the bytes of an unmarked extent as requested for this device.
func (a *account) charge(extent int64, length uint32) bool {
	isNew := a.request(extent, length)
	if isNew {
		a.added.Add(int64(length))
	}
	return isNew
}

// use counts the marked extents in a read as used, and reports whether there were any.
func (a *account) use(r device.Read) (any bool) {
	if a.marks.isEmpty() {
		return false
	}
	for i := r.First; i < r.End; i++ {
		any = a.useExtent(i) || any
	}
	return any
}

// useExtent counts an extent as used, and reports whether it was marked.
func (a *account) useExtent(i int64) bool {
	if !a.marks.clear(i) {
		return false
	}
	if e, err := a.extents.Extent(i); err == nil {
		a.used.Add(int64(e.Length))
		a.total.used.Add(int64(e.Length))
	}
	return true
}

// debt returns added − part × used, in bytes.
func (a *account) debt(part int64) int64 { return a.added.Load() - part*a.used.Load() }

// forgive makes the debt smaller. It is not for concurrent use with charge.
func (a *account) forgive(bytes int64) { a.added.Store(max(a.added.Load()-bytes, 0)) }

// forget restarts the account for a new start. Chunks requested before this call and read after it
// count as used.
func (a *account) forget() {
	a.added.Store(0)
	a.used.Store(0)
}

// marks has a bit for each extent of a device. It takes memory once the first bit is set.
type marks struct {
	words atomic.Pointer[[]atomic.Uint64]
}

func (m *marks) isEmpty() bool { return m.words.Load() == nil }

// set marks an extent, and reports whether it was unmarked before. extents is the device's number
// of extents.
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

// clear removes a mark and reports whether there was one.
func (m *marks) clear(extent int64) bool {
	words := m.words.Load()
	if words == nil {
		return false
	}
	word, bit := &(*words)[extent/64], uint64(1)<<(extent%64)
	return word.Load()&bit != 0 && word.And(^bit)&bit != 0
}
