package device

import (
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
)

const (
	// aroundUnit is what a unit is taken to have on its way, in bytes.
	aroundUnit = 48 << 10
	// aroundFar bounds the extents that are looked at in one direction.
	aroundFar = 2048
	// aroundCredit is how many bytes, plain, may come before any of them is read. Of
	// what comes beyond it, one part in aroundPart has to be read.
	aroundCredit = 8 << 20
	aroundPart   = 4
)

// around asks for what lies around a miss. While a reader waits a round trip for one
// unit, the link could bring many: on a long way the rest of the file comes too, as
// much as arrives in that time, so that it at most doubles. Where little of that is
// read it ends.
type around struct {
	busy    atomic.Bool // one miss at a time is enough
	marks   marks
	brought atomic.Int64 // plain
	used    atomic.Int64
	work    sync.WaitGroup
}

// pays tells whether enough was read of what came.
func (a *around) pays() bool { return a.brought.Load() <= aroundCredit+aroundPart*a.used.Load() }

// readAround asks for the rest of the file in which an extent is whose chunk is not
// here. It does not wait. What a start needs according to the hub goes first.
func (d *Device) readAround(extent int64) {
	if d.ahead.options.Limit <= 0 {
		return
	}
	reach := d.chunks.Reach()
	if reach == 0 || !d.around.pays() || d.stream.isRunning() || !d.around.busy.CompareAndSwap(false, true) {
		return
	}
	d.around.work.Go(func() {
		defer d.around.busy.Store(false)
		w := &neighbours{device: d, left: int(reach/aroundUnit) - d.ahead.waiting(d.wishes), asked: map[chunk.Unit]bool{}}
		w.ask(extent)
	})
}

// neighbours are units in which chunks of one file are.
type neighbours struct {
	device *Device
	left   int // how many more may be asked for
	own    chunk.Unit
	asked  map[chunk.Unit]bool
}

// ask asks for what is behind the extent, up to the file's end, then for what is before
// it.
func (w *neighbours) ask(extent int64) {
	w.own, _ = w.device.unit(extent) // it comes anyway
	for i := extent + 1; i < extent+aroundFar; i++ {
		if first, more := w.take(i, false); first || !more {
			break
		}
	}
	for i := extent; i > extent-aroundFar; i-- {
		if first, more := w.take(i, true); first || !more {
			break
		}
	}
}

// take asks for one extent's unit, though not if the extent is a file's first and
// firsts are not wanted. It tells whether the extent is one, and whether to go on.
func (w *neighbours) take(i int64, firsts bool) (first, more bool) {
	d := w.device
	if i < 0 || i >= d.extents.Extents {
		return false, false
	}
	e, err := d.extents.Extent(i)
	if err != nil {
		return false, false
	}
	if e.First && !firsts || d.chunks.Has(e.ID) {
		return e.First, true
	}
	unit, _ := d.unit(i)
	if unit.IsZero() || unit == w.own {
		return e.First, true
	}
	if !w.asked[unit] {
		if w.left <= 0 || !d.ahead.ask(d.wishes, chunk.Ref{ID: e.ID, Length: e.Length, Unit: unit}) {
			return false, false
		}
		w.left--
		w.asked[unit] = true
	}
	if d.around.marks.set(i, d.extents.Extents) {
		d.around.brought.Add(int64(e.Length))
		d.ahead.around.brought.Add(int64(e.Length))
	}
	return e.First, true
}
