package prefetch

import (
	"cmp"
	"slices"

	"lighter/format/index"
)

// maxPlanned bounds the extents considered of one startup pack. Further ones are fetched on demand.
const maxPlanned = 1 << 16

// Unit is one unit of a startup pack, with the extents whose chunks it should hold: one at least.
type Unit struct {
	N       uint32
	Extents []int64
}

// Units lists the units of a startup pack in order. It leaves out units without chunks of any extent.
// It reads all of the locations once.
func Units(locations *index.Locations, pack index.Startup) ([]Unit, error) {
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
	var units []Unit
	for _, p := range places {
		if len(units) == 0 || units[len(units)-1].N != p.n {
			units = append(units, Unit{N: p.n})
		}
		last := &units[len(units)-1]
		last.Extents = append(last.Extents, p.extent)
	}
	return units, nil
}

// Triggers are ranges of a device whose reads start the fetch of packs. They are immutable, and safe
// for concurrent use.
type Triggers struct{ ranges []trigger } // by From

type trigger struct {
	Range
	pack int
}

// NewTriggers returns the triggers of packs, given by pack number. The ranges are extents: two of them
// are the same or do not overlap.
func NewTriggers(packs map[int][]Range) *Triggers {
	t := &Triggers{}
	for pack, ranges := range packs {
		for _, r := range ranges {
			t.ranges = append(t.ranges, trigger{r, pack})
		}
	}
	slices.SortFunc(t.ranges, func(a, b trigger) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.pack, b.pack)) })
	return t
}

// Wanted returns the numbers of the packs that a read of the range triggers, mostly none.
func (t *Triggers) Wanted(offset, length int64) (packs []int) {
	i, _ := slices.BinarySearchFunc(t.ranges, offset, func(r trigger, at int64) int {
		if r.To <= at {
			return -1
		}
		return 1
	})
	for ; i < len(t.ranges) && t.ranges[i].From < offset+length; i++ {
		packs = append(packs, t.ranges[i].pack)
	}
	return packs
}
