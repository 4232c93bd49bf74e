package prefetch

import (
	"cmp"
	"slices"

	"lighter/format/index"
)

// unit is a unit of a startup pack.
type unit struct {
	n       uint32  // the unit's number in the pack
	extents []int64 // the extents, at least one, whose chunks the unit should contain
}

// unitsOf lists the units of a startup pack in order. It leaves out units that no extent's location
// names. It reads all of the locations once.
func unitsOf(locations *index.Locations, pack index.Startup) ([]unit, error) {
	type place struct {
		n      uint32
		extent int64
	}
	var places []place
	err := locations.In(pack.Pack, func(extent int64, n uint32) {
		if int64(n) < int64(len(pack.Units)) && len(places) < maxPlanned {
			places = append(places, place{n, extent})
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.n, b.n) })
	var units []unit
	for _, p := range places {
		if len(units) == 0 || units[len(units)-1].n != p.n {
			units = append(units, unit{n: p.n})
		}
		last := &units[len(units)-1]
		last.extents = append(last.extents, p.extent)
	}
	return units, nil
}

// triggers are ranges of a device. A read of such a range starts the fetch of a pack. They are
// immutable, and safe for concurrent use.
type triggers struct{ ranges []trigger } // sorted by from

type trigger struct {
	span
	pack int
}

// newTriggers returns the triggers of packs, from the ranges of each pack number. Each range is the
// range of an extent. So any two ranges are equal or do not overlap.
func newTriggers(packs map[int][]span) *triggers {
	t := &triggers{}
	for pack, ranges := range packs {
		for _, r := range ranges {
			t.ranges = append(t.ranges, trigger{r, pack})
		}
	}
	slices.SortFunc(t.ranges, func(a, b trigger) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.pack, b.pack))
	})
	return t
}

// wanted returns the numbers of the packs that a read of the range triggers, mostly none.
func (t *triggers) wanted(r span) (packs []int) {
	i, _ := slices.BinarySearchFunc(t.ranges, r.from, func(t trigger, at int64) int {
		if t.to <= at {
			return -1
		}
		return 1
	})
	for ; i < len(t.ranges) && t.ranges[i].from < r.to; i++ {
		packs = append(packs, t.ranges[i].pack)
	}
	return packs
}
