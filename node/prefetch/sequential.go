package prefetch

import (
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
)

// sequential fetches data ahead of sequential readers. A reader is inside startup packs if the last
// chunk that it has read belongs to a startup pack. For such a reader, sequential requests only
// units of wanted packs. While packs are being streamed, it requests nothing: the stream contains
// what the reader needs.
type sequential struct {
	device   *device.Device
	cache    Cache
	requests *requests
	startup  *startup

	outside, inside tracker // readers outside and inside of startup packs
}

var _ device.Observer = (*sequential)(nil)

// Observe requests the units that the reader is likely to read next.
func (s *sequential) Observe(r device.Read) {
	inStartup := r.End > r.First && s.startup.contains(r.End-1)
	readers := &s.outside
	if inStartup {
		readers = &s.inside
	}
	want := readers.read(r.Offset, r.Length, func(limit int64) int64 { return s.fileEnd(r.Offset, limit) })
	if want.to <= want.from || inStartup && s.startup.isRunning() {
		return
	}
	extents := s.device.Extents()
	i, err := extents.Find(want.from)
	last := chunk.Unit{}
	for ; err == nil && i < extents.Extents; i++ {
		var e index.Extent
		if e, err = extents.Extent(i); err != nil || e.Offset >= want.to {
			return
		}
		if s.cache.Has(e.ID) {
			continue
		}
		unit, _ := s.device.Unit(i)
		if unit == last && !last.IsZero() || inStartup && !s.startup.wants(unit.Pack) {
			continue
		}
		last = unit
		if !s.requests.add(refOf(e, unit)) {
			return
		}
	}
}

// fileEnd returns the offset of the next extent that begins a file, or limit if that is smaller.
func (s *sequential) fileEnd(offset, limit int64) int64 {
	extents := s.device.Extents()
	i, err := extents.Find(offset)
	for ; err == nil && i < extents.Extents; i++ {
		var e index.Extent
		if e, err = extents.Extent(i); err != nil || e.Offset >= limit {
			return limit
		}
		if e.First && e.Offset > offset {
			return e.Offset
		}
	}
	return limit
}
