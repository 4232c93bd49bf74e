package index

import "sync/atomic"

// Pages holds pages of extent maps that were used a while ago at most, verified
// and decoded: of all maps that share it, so that what it takes does not grow with
// the maps. It is safe for concurrent use.
//
// A page has one place, which it takes from whatever was there. So looking one up
// takes no lock, and nothing has to be kept of which was used when. Pages of one
// map that lie beside each other do not push each other out.
type Pages struct {
	places []atomic.Pointer[page]
	maps   atomic.Uint64 // the number of the newest map
}

// page is one page of the map of that number. Numbers are not given again, so
// what a map leaves here when it goes is never taken for another's.
type page struct {
	of      uint64
	number  int64
	extents []Extent
}

// NewPages makes room for n pages, of at most 5 kB each.
func NewPages(n int) *Pages { return &Pages{places: make([]atomic.Pointer[page], n)} }

func (c *Pages) place(of uint64, number int64) *atomic.Pointer[page] {
	const spread = 0x9E3779B97F4A7C15 // 2⁶⁴ / φ: maps begin far from each other
	return &c.places[(of*spread>>16+uint64(number))%uint64(len(c.places))]
}

// get returns the extents of a page, or nil.
func (c *Pages) get(of uint64, number int64) []Extent {
	if p := c.place(of, number).Load(); p != nil && p.of == of && p.number == number {
		return p.extents
	}
	return nil
}

func (c *Pages) put(of uint64, number int64, extents []Extent) {
	c.place(of, number).Store(&page{of, number, extents})
}
