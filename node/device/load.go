package device

import (
	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/node/prefetch"
)

// maxLoads is how many units' chunks are read from the disk at a time, for nobody who
// waits: enough to keep it busy, and so few that a fault is soon served that finds
// nothing in memory.
const maxLoads = 4

// load has what is here of a startup pack read from the disk into memory, in the order
// in which a start will ask for it: the disk gives much at a time, and the kernel asks
// for one thing after the other. It does not wait.
func (s *stream) load(units []prefetch.Unit) {
	d := s.device
	s.work.Go(func() {
		var group errgroup.Group
		for _, u := range units {
			refs, plain := d.here(u.Extents)
			if plain == 0 {
				continue
			}
			if !s.mayLoad(plain) {
				break
			}
			group.Go(func() error {
				defer func() { <-d.ahead.loads }()
				d.chunks.Load(refs)
				d.ahead.loaded.Add(plain)
				return nil
			})
		}
		_ = group.Wait() // of what cannot be read the fault will tell
	})
}

// mayLoad waits until so many bytes may be read, and tells whether they may.
func (s *stream) mayLoad(plain int64) bool {
	a := s.device.ahead
	if a.options.Short() != nil || !s.take(plain) {
		return false
	}
	select {
	case a.loads <- struct{}{}:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// here returns the chunks of extents that are on this machine, and their bytes.
func (d *Device) here(extents []int64) (refs []chunk.Ref, plain int64) {
	for _, i := range extents {
		if e, err := d.extents.Extent(i); err == nil && d.chunks.Has(e.ID) {
			refs = append(refs, chunk.Ref{ID: e.ID, Length: e.Length})
			plain += int64(e.Length)
		}
	}
	return refs, plain
}
