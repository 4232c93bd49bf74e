package prefetch

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// unitsOf lists a pack's units in order, and leaves out units that the pack does not have.
func TestUnits(t *testing.T) {
	id, startup, other := chunk.Sum([]byte("tree")), chunk.Sum([]byte("startup")), chunk.Sum([]byte("other"))
	b := index.NewLocations(id)
	for _, u := range []chunk.Unit{{Pack: startup, N: 2}, {Pack: other}, {},
		{Pack: startup, N: 0}, {Pack: startup, N: 2}, {Pack: startup, N: 9}} {
		b.Add(u)
	}
	bytes, n := encoded(b), int64(6)
	l, err := index.OpenLocations(bytes, bytes.Size(), id, n)
	if err != nil {
		t.Fatal(err)
	}
	units, err := unitsOf(l, index.Startup{Pack: startup, Units: make([]uint32, 3)})
	want := []unit{{0, []int64{3}}, {2, []int64{0, 4}}}
	if err != nil || !reflect.DeepEqual(units, want) {
		t.Errorf("units %+v, %v; want %+v", units, err, want)
	}
	units, err = unitsOf(l, index.Startup{Pack: chunk.Sum(nil), Units: make([]uint32, 3)})
	if err != nil || len(units) != 0 {
		t.Errorf("units of an unknown pack: %+v, %v; want none", units, err)
	}
}

func encoded(b *index.LocationsBuilder) *bytes.Reader { return bytes.NewReader(b.Encode()) }

// The number of extents that are listed of one pack is bounded.
func TestUnitsAreBounded(t *testing.T) {
	id, startup := chunk.Sum([]byte("tree")), chunk.Sum([]byte("startup"))
	b := index.NewLocations(id)
	const n = maxPlanned + 100
	for i := range uint32(n) {
		b.Add(chunk.Unit{Pack: startup, N: i % 5})
	}
	r := encoded(b)
	l, err := index.OpenLocations(r, r.Size(), id, n)
	if err != nil {
		t.Fatal(err)
	}
	units, err := unitsOf(l, index.Startup{Pack: startup, Units: make([]uint32, 5)})
	listed := 0
	for _, u := range units {
		listed += len(u.extents)
	}
	if err != nil || len(units) != 5 || listed != maxPlanned {
		t.Errorf("%d units with %d extents, %v; want 5 with %d", len(units), listed, err, maxPlanned)
	}
}

// A read triggers the same packs as a search of all ranges finds.
func TestTriggers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	packs := map[int][]span{}
	for at := int64(0); at < 1000; at += 1 + r.Int64N(20) {
		extent := span{at, at + 1 + r.Int64N(10)}
		for range r.IntN(3) {
			pack := r.IntN(5)
			packs[pack] = append(packs[pack], extent)
		}
		at = extent.to
	}
	trigs := newTriggers(packs)
	for range 2000 {
		offset, length := r.Int64N(1100), 1+r.Int64N(40)
		want := map[int]bool{}
		for pack, ranges := range packs {
			for _, x := range ranges {
				if x.from < offset+length && offset < x.to {
					want[pack] = true
				}
			}
		}
		got := map[int]bool{}
		for _, pack := range trigs.wanted(span{offset, offset + length}) {
			got[pack] = true
		}
		if len(got) != len(want) {
			t.Fatalf("a read of %d bytes at %d triggers %v, want %v", length, offset, got, want)
		}
		for pack := range want {
			if !got[pack] {
				t.Fatalf("a read of %d bytes at %d triggers %v, want %v", length, offset, got, want)
			}
		}
	}
	if got := newTriggers(nil).wanted(span{0, 1 << 40}); got != nil {
		t.Errorf("without triggers, a read wants packs %v, want none", got)
	}
}
