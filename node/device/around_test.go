package device

import (
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// With a miss the rest of its file comes, as much as the link brings in a round trip,
// then a little of what lies beside, or all of it when such was read. On a short way
// nothing comes.
func TestAroundAMiss(t *testing.T) {
	type before struct{ brought, used int64 } // of both kinds
	for name, test := range map[string]struct {
		reach, limit int64
		before       before
		file, beside int // units, at most
	}{
		"quick":        {reach: 0, limit: plenty},
		"not wanted":   {reach: 4 << 20},
		"one unit":     {reach: aroundUnit, limit: plenty, file: 1},
		"four units":   {reach: 4 * aroundUnit, limit: plenty, file: 4, beside: 2},
		"many":         {reach: 4 << 20, limit: plenty, file: 80, beside: besideUnits},
		"some is read": {4 << 20, plenty, before{(besidePart + 1) << 20, 1 << 20}, 80, besideUnits},
		"much is read": {20 * aroundUnit, plenty, before{besidePart << 20, 1 << 20}, 80, 18},
		"does not pay": {4 << 20, plenty, before{aroundCredit + 1, 0}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, _ := build(t)
			s.here, s.reach = nil, test.reach
			d.ahead.options.Limit = test.limit
			for _, z := range []*zone{&d.around.file, &d.around.beside} {
				z.brought.Store(test.before.brought)
				z.used.Store(test.before.used)
			}
			d.SetLocations(alone(t, d))
			var first int64 // of a file of three extents, which is not the first
			for first = 5; !extentOf(t, d, first).First || !extentOf(t, d, first+3).First || extentOf(t, d, first+1).First || extentOf(t, d, first+2).First; first++ {
			}
			miss := first + 1
			if _, err := d.ReadAt(t.Context(), make([]byte, 10), extentOf(t, d, miss).Offset); err != nil {
				t.Fatal(err)
			}
			d.around.work.Wait()
			file, beside := min(test.file, 2), test.beside
			if got := len(d.wishes.refs); got != file+beside {
				t.Errorf("%d units are asked for, want %d and %d", got, file, beside)
			}
			for i := range d.extents.Extents {
				own := i >= first && i < first+3
				if d.around.file.marks.clear(i) && (!own || i == miss) || d.around.beside.marks.clear(i) && (own || i < first-int64(test.beside)/2 || i > first+2+int64(test.beside)) {
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

// What came for a start and was not read does not keep it from coming for the next.
func TestAroundForgetsFormerStarts(t *testing.T) {
	d, _, _ := build(t)
	d.around.file.brought.Store(2 * aroundCredit)
	d.stream.begin()
	if d.around.file.debt(filePart) == 0 {
		t.Error("it is forgotten without a start: nothing was read")
	}
	if _, err := d.ReadAt(t.Context(), make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	d.stream.begin()
	if debt := d.around.file.debt(filePart); debt != 0 {
		t.Errorf("%d bytes are still counted", debt)
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
