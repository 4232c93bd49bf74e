package device

import (
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
)

const (
	// aroundUnit is what a unit is taken to have on its way, in bytes.
	aroundUnit = 64 << 10
	// aroundFar bounds the extents that are looked at in one direction.
	aroundFar = 2048
	// besideUnits is how many units of other files come with a miss while it is not
	// known whether they are read.
	besideUnits = 4
	// aroundCredit is how many bytes, plain, may come before any of them is read. Of
	// what comes beyond it, one part in filePart has to be read where it is of the
	// file that was read, one in besidePart where it is of others.
	aroundCredit = 8 << 20
	filePart     = 4
	besidePart   = 8
)

// around asks for what lies around a miss. While a reader waits a round trip for one
// unit, the link could bring many: on a long way the rest of the file comes too, as
// as much as arrives in that time, so that it at most doubles; and if that is not all
// that could come, a little of the files beside it. Where little of that is read it
// ends.
type around struct {
	busy         atomic.Bool // one miss at a time is enough
	file, beside zone
	work         sync.WaitGroup
}

// forget has what came for former starts not count against the next. What of it is read
// now counts for it.
func (a *around) forget() {
	a.file.forget()
	a.beside.forget()
}

// readAround asks for what lies around an extent whose chunk is not here. It does not
// wait. What a start needs according to the hub goes first.
func (d *Device) readAround(extent int64) {
	if d.ahead.options.Limit <= 0 {
		return
	}
	reach := d.chunks.Reach()
	if reach == 0 || d.stream.isRunning() || !d.around.busy.CompareAndSwap(false, true) {
		return
	}
	d.around.work.Go(func() {
		defer d.around.busy.Store(false)
		w := &neighbours{device: d, left: int(reach/aroundUnit) - d.ahead.waiting(d.wishes), asked: map[chunk.Unit]bool{}}
		w.ask(extent)
	})
}

// neighbours are units in which chunks near one extent are.
type neighbours struct {
	device *Device
	left   int // how many more may be asked for
	own    chunk.Unit
	asked  map[chunk.Unit]bool
}

// ask asks for what is behind the extent, up to the file's end, then for what is before
// it, then for what is beside the file.
func (w *neighbours) ask(extent int64) {
	d := w.device
	w.own, _ = d.unit(extent) // it comes anyway
	behind, before := extent+1, extent
	if d.around.file.debt(filePart) <= aroundCredit {
		for ; behind < extent+aroundFar && !w.isFirst(behind); behind++ {
			if !w.take(behind, &d.around.file) {
				return
			}
		}
		for ; before > extent-aroundFar && !w.isFirst(before); before-- {
			if !w.take(before-1, &d.around.file) {
				return
			}
		}
	}
	switch beside := &d.around.beside; {
	case beside.debt(besidePart) > aroundCredit:
		return
	case beside.used.Load() == 0 || beside.debt(besidePart) > 0:
		w.left = min(w.left, besideUnits)
	}
	for n := range aroundFar { // of three extents two behind
		i := behind
		if n%3 == 2 {
			before--
			i = before
		} else {
			behind++
		}
		if !w.take(i, &d.around.beside) {
			return
		}
	}
}

// isFirst tells whether an extent is a file's first, or there is none of that number.
func (w *neighbours) isFirst(i int64) bool {
	e, err := w.device.extents.Extent(i)
	return err != nil || e.First
}

// take asks for one extent's unit, and tells whether to go on.
func (w *neighbours) take(i int64, z *zone) bool {
	d := w.device
	e, err := d.extents.Extent(i)
	if err != nil || d.chunks.Has(e.ID) {
		return true
	}
	unit, _ := d.unit(i)
	if unit.IsZero() || unit == w.own {
		return true
	}
	if !w.asked[unit] {
		if w.left <= 0 || !d.ahead.ask(d.wishes, chunk.Ref{ID: e.ID, Length: e.Length, Unit: unit}) {
			return false
		}
		w.left--
		w.asked[unit] = true
	}
	if z.marks.set(i, d.extents.Extents) {
		z.brought.Add(int64(e.Length))
		d.ahead.around.brought.Add(int64(e.Length))
	}
	return true
}
