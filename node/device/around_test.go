package device

import (
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// With a miss the rest of its file comes, as much as the link brings in a round trip,
// then a little of what lies beside. On a short way nothing comes.
func TestAroundAMiss(t *testing.T) {
	for name, test := range map[string]struct {
		reach, limit, before int64
		file, beside         int // units, at most
	}{
		"quick":        {0, plenty, 0, 0, 0},
		"not wanted":   {4 << 20, 0, 0, 0, 0},
		"one unit":     {aroundUnit, plenty, 0, 1, 0},
		"four units":   {4 * aroundUnit, plenty, 0, 4, 2},
		"many":         {4 << 20, plenty, 0, 80, besideUnits},
		"does not pay": {4 << 20, plenty, aroundCredit + 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, _ := build(t)
			s.here, s.reach = nil, test.reach
			d.ahead.options.Limit = test.limit
			d.around.file.brought.Store(test.before)
			d.around.beside.brought.Store(test.before)
			d.SetLocations(alone(t, d))
			var first int64 // of a file of three extents, which is not the first
			for first = 5; !extentOf(t, d, first).First || !extentOf(t, d, first+3).First || extentOf(t, d, first+1).First || extentOf(t, d, first+2).First; first++ {
			}
			miss := first + 1
			if err := d.ReadAt(t.Context(), make([]byte, 10), extentOf(t, d, miss).Offset); err != nil {
				t.Fatal(err)
			}
			d.around.work.Wait()
			file, beside := min(test.file, 2), test.beside
			if got := len(d.wishes.refs); got != file+beside {
				t.Errorf("%d units are asked for, want %d and %d", got, file, beside)
			}
			for i := range d.extents.Extents {
				own := i >= first && i < first+3
				if d.around.file.marks.clear(i) && (!own || i == miss) || d.around.beside.marks.clear(i) && (own || i < first-2 || i > first+2+besideUnits) {
					t.Errorf("extent %d is asked for; the file has %d to %d", i, first, first+2)
				}
			}
		})
	}
}

// Where little of what lies around is read, no more is asked for.
func TestAroundHasToPay(t *testing.T) {
	var z zone
	pays := func() bool { return z.debt(filePart) <= aroundCredit }
	z.brought.Store(aroundCredit)
	if !pays() {
		t.Error("there is no credit")
	}
	z.brought.Add(filePart)
	if pays() {
		t.Error("it goes on without a yield")
	}
	z.used.Add(1)
	if !pays() {
		t.Error("a yield counts for nothing")
	}
}

func extentOf(t *testing.T, d *Device, i int64) index.Extent {
	t.Helper()
	e, err := d.extents.Extent(i)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// alone returns locations in which each extent has a unit of its own.
func alone(t *testing.T, d *Device) *index.Locations {
	t.Helper()
	h := &startHub{extents: d.extents, locations: index.NewLocations(d.extents.ID())}
	for i := range d.extents.Extents {
		h.locations.Add(unitOf(i))
	}
	return h.open(t)
}

func unitOf(extent int64) chunk.Unit {
	return chunk.Unit{Pack: chunk.Sum([]byte("alone")), N: uint32(extent)}
}
