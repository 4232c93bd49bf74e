package prefetch

import (
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
)

// neighbours fetches the units around a missing chunk. While a reader waits one RTT for a unit, a
// long path could deliver many units. So neighbours also requests the rest of the file, up to the
// bytes that arrive in one RTT. If the rest of the file has fewer bytes, it requests some units of
// neighbouring files, too. It stops if little of what it has requested is read.
type neighbours struct {
	device   *device.Device
	source   Source
	requests *requests
	startup  *startup
	isOff    bool

	busy        atomic.Bool // a search is running; further misses start no other search
	file, other account     // chunks of the missing chunk's file, and of other files
	work        sync.WaitGroup
}

var _ device.Observer = (*neighbours)(nil)

func newNeighbours(p *Prefetcher, d *Device) *neighbours {
	return &neighbours{device: d.Device, source: d.source, requests: d.requests, startup: d.startup,
		isOff: p.options.Limit <= 0,
		file:  newAccount(d.Extents(), &p.neighbours), other: newAccount(d.Extents(), &p.neighbours)}
}

// forget restarts the accounts for a new start.
func (n *neighbours) forget() {
	n.file.forget()
	n.other.forget()
}

// Observe requests the neighbours of a miss, unless startup packs are being fetched: these go
// first.
func (n *neighbours) Observe(r device.Read) {
	n.use(&n.file, r)
	n.use(&n.other, r)
	if r.Missing < 0 || n.isOff || n.startup.isRunning() || n.busy.Load() {
		return
	}
	own, _ := n.device.Unit(r.Missing) // not requested here, because the reader requests it
	perRTT := n.source.BytesPerRTT(own)
	if perRTT == 0 || !n.busy.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.busy.Store(false)
		s := &search{neighbours: n, own: own, left: perRTT - int64(n.requests.queued())*neighbourUnit,
			requested: map[chunk.Unit]bool{}}
		s.run(r.Missing)
	})
}

// use counts the units of what was read as used, each of them as a whole: a reader that misses one
// chunk has to wait for its unit, however few of the unit's chunks are read later.
func (n *neighbours) use(a *account, r device.Read) {
	if !a.use(r) {
		return
	}
	for _, step := range []int64{-1, 1} {
		edge := r.First
		if step > 0 {
			edge = r.End - 1
		}
		own, ok := n.device.Unit(edge)
		for i := edge + step; ok && !own.IsZero() && i > edge-neighbourSpan && i < edge+neighbourSpan; i += step {
			if unit, known := n.device.Unit(i); !known || unit != own {
				break
			}
			a.useExtent(i)
		}
	}
}

// search requests units that contain chunks near the extent of a missing chunk.
type search struct {
	*neighbours
	left      int64               // bytes that may still be requested
	own       chunk.Unit          // the unit of the missing chunk
	size      int64               // bytes that each unit is assumed to have
	requested map[chunk.Unit]bool // units that this search has requested
}

// run requests the extents of the file after the given extent, and then those before it. Then it
// requests extents of neighbouring files. The file and the other files have an account each. If too
// little of the bytes on an account was read, run requests nothing more on that account, until
// further misses have paid for it.
func (s *search) run(extent int64) {
	plain := s.plainAround(extent)
	s.size = max(neighbourUnit, plain/plainToStored)
	s.file.forgive(plain / inVain)
	s.other.forgive(plain / inVain)
	after, before := extent+1, extent
	withFile := s.file.debt(filePart) <= neighbourCredit
	for ; after < extent+neighbourSpan && !s.isFirst(after); after++ {
		if withFile && !s.request(after, &s.file) {
			return
		}
	}
	for ; before > extent-neighbourSpan && !s.isFirst(before); before-- {
		if withFile && !s.request(before-1, &s.file) {
			return
		}
	}
	if !s.isFirst(after) || !s.isFirst(before) {
		return // the file is larger than neighbourSpan
	}
	switch debt := s.other.debt(otherPart); {
	case debt > neighbourCredit:
		return
	case s.other.used.Load() == 0 || debt > 0:
		s.left = min(s.left, neighbourProbe*s.size)
	}
	for k := range neighbourSpan { // two extents after the file, then one before it, and so on
		i := after
		if k%3 == 2 {
			before--
			i = before
		} else {
			after++
		}
		if !s.request(i, &s.other) {
			return
		}
	}
}

// plainAround returns the plain bytes of an extent, and of the extents next to it that are in the
// same unit.
func (s *search) plainAround(extent int64) (bytes int64) {
	for _, step := range []int64{-1, 1} {
		for i := extent + min(step, 0); i > extent-unitSpan && i < extent+unitSpan; i += step {
			e, err := s.device.Extents().Extent(i)
			unit, _ := s.device.Unit(i)
			if err != nil || unit != s.own {
				break
			}
			bytes += int64(e.Length)
		}
	}
	return bytes
}

// isFirst reports whether an extent is the first of a file, or does not exist.
func (s *search) isFirst(extent int64) bool {
	e, err := s.device.Extents().Extent(extent)
	return err != nil || e.First
}

// request requests one extent's unit, if its chunk is missing, and reports whether to continue with
// other extents.
func (s *search) request(extent int64, a *account) bool {
	e, err := s.device.Extents().Extent(extent)
	if err != nil || s.source.Has(e.ID) {
		return true
	}
	unit, _ := s.device.Unit(extent)
	if unit.IsZero() || unit == s.own {
		return true
	}
	if !s.requested[unit] {
		if s.left <= 0 || !s.requests.add(refOf(e, unit)) {
			return false
		}
		s.left -= s.size
		s.requested[unit] = true
	}
	a.charge(extent, e.Length)
	return true
}

// refOf returns the reference of an extent's chunk.
func refOf(e index.Extent, unit chunk.Unit) chunk.Ref {
	return chunk.Ref{ID: e.ID, Length: e.Length, Unit: unit}
}
