package device

import (
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// With a miss the rest of its file comes, as much as the link brings in a round trip,
// and nothing of another file. On a short way nothing comes.
func TestAroundAMiss(t *testing.T) {
	for _, test := range []struct {
		reach, limit, before int64
		units                int // at most
	}{{0, plenty, 0, 0}, {4 << 20, 0, 0, 0}, {aroundUnit, plenty, 0, 1}, {4 << 20, plenty, 0, 80}, {4 << 20, plenty, aroundCredit + 1, 0}} {
		d, s, _ := build(t)
		s.here, s.reach = nil, test.reach
		d.ahead.options.Limit = test.limit
		d.around.brought.Store(test.before)
		d.SetLocations(alone(t, d))
		// The middle of a file of several extents.
		var first, last int64
		for i := range d.extents.Extents {
			e := extentOf(t, d, i)
			if e.First {
				first = i
			}
			if last = i; i-first == 2 {
				break
			}
		}
		miss := first + 1
		for i := last + 1; i < d.extents.Extents && !extentOf(t, d, i).First; i++ {
			last = i
		}
		e := extentOf(t, d, miss)
		if err := d.ReadAt(t.Context(), make([]byte, 10), e.Offset); err != nil {
			t.Fatal(err)
		}
		d.around.work.Wait()
		want := int(min(int64(test.units), last-first))
		if got := len(d.wishes.refs); got != want {
			t.Errorf("reach %d, limit %d: %d of %d extents are asked for, want %d", test.reach, test.limit, got, last-first+1, want)
		}
		for i := range d.extents.Extents {
			if d.around.marks.clear(i) && (i < first || i > last || i == miss) {
				t.Errorf("extent %d is asked for; the file has %d to %d", i, first, last)
			}
		}
	}
}

// Where little of what lies around is read, no more is asked for.
func TestAroundHasToPay(t *testing.T) {
	var a around
	a.brought.Store(aroundCredit)
	if !a.pays() {
		t.Error("there is no credit")
	}
	a.brought.Add(aroundPart)
	if a.pays() {
		t.Error("it goes on without a yield")
	}
	a.used.Add(1)
	if !a.pays() {
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
	h := &hub{extents: d.extents, locations: index.NewLocations(d.extents.ID())}
	for i := range d.extents.Extents {
		h.locations.Add(unitOf(i))
	}
	return h.open(t)
}

func unitOf(extent int64) chunk.Unit {
	return chunk.Unit{Pack: chunk.Sum([]byte("alone")), N: uint32(extent)}
}
