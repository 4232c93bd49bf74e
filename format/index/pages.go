package index

import "sync/atomic"

// Pages is a cache of verified and decoded pages, shared by several extent maps, so that its size
// does not depend on their number. It is safe for concurrent use.
//
// It is direct-mapped: each page can be in one slot only, and replaces the page that was there. So
// a lookup takes no lock and maintains no order of use. Neighbouring pages of a map have different
// slots.
type Pages struct {
	slots     []atomic.Pointer[page]
	newestMap atomic.Uint64 // number of the newest map
}

// page is one page of a map. Maps' numbers are not reused, so the pages of a closed map are not
// taken for those of another.
type page struct {
	of      uint64 // the map's number
	number  int64  // in the map
	extents []Extent
}

// NewPages returns a cache for n pages, of at most 5 kB each.
func NewPages(n int) *Pages { return &Pages{slots: make([]atomic.Pointer[page], n)} }

func (c *Pages) slot(of uint64, number int64) *atomic.Pointer[page] {
	const spread = 0x9E3779B97F4A7C15 // 2⁶⁴ / φ: maps begin at slots far from each other
	return &c.slots[(of*spread>>16+uint64(number))%uint64(len(c.slots))]
}

// get returns the extents of a page, or nil.
func (c *Pages) get(of uint64, number int64) []Extent {
	if p := c.slot(of, number).Load(); p != nil && p.of == of && p.number == number {
		return p.extents
	}
	return nil
}

func (c *Pages) put(of uint64, number int64, extents []Extent) {
	c.slot(of, number).Store(&page{of, number, extents})
}
