package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/test/testkit/golden"
)

// sampleLocations returns the locations of tree 9, with two startup packs.
func sampleLocations() (enc []byte, units []chunk.Unit, startups []Startup) {
	units = []chunk.Unit{{Pack: id(1), N: 0}, {Pack: id(1), N: 1}, {}, {Pack: id(2), N: 7}, {Pack: id(3), N: 0}}
	startups = []Startup{
		{Pack: id(2), Units: []uint32{1 << 20, 815}, AtMount: true},
		{Pack: id(3), Units: []uint32{4711}, Triggers: []int64{0, 4}},
	}
	b := NewLocations(id(9))
	for _, s := range startups { // a pack can be appended before its extents
		b.Startup(s)
	}
	for _, u := range units {
		b.Add(u)
	}
	return b.Encode(), units, startups
}

func openBytes(b []byte, tree chunk.ID, n int64) (*Locations, error) {
	return OpenLocations(bytes.NewReader(b), int64(len(b)), tree, n)
}

func TestLocations(t *testing.T) {
	enc, units, startups := sampleLocations()
	l, err := openBytes(enc, id(9), int64(len(units)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range units {
		if got, err := l.Unit(int64(i)); err != nil || got != want {
			t.Errorf("location %d is %v, error %v; want %v", i, got, err, want)
		}
	}
	if _, err := l.Unit(5); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("a location after the last one: got %v, want ErrNotFound", err)
	}
	if got := l.Startups(); !reflect.DeepEqual(got, startups) {
		t.Errorf("startup packs %v, want %v", got, startups)
	}
	if _, err := openBytes(enc, id(9), -1); err != nil {
		t.Errorf("locations of an unknown number of extents: got %v, want no error", err)
	}
	golden.Compare(t, "locations.golden", hex.Dump(enc))
}

// Invalid locations are rejected. Each case damages one thing.
func TestLocationsThatAreWrong(t *testing.T) {
	enc, units, _ := sampleLocations()
	n := int64(len(units))
	for name, spoil := range map[string]func(b []byte) []byte{
		"cut":                 func(b []byte) []byte { return b[:len(b)-1] },
		"not a header":        func(b []byte) []byte { return b[:20] },
		"half a number":       func(b []byte) []byte { return b[:locationsHeader-1] },
		"endless":             func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 1<<63+1); return b },
		"format 1":            func(b []byte) []byte { b[8] = 1; return b },
		"format 2":            func(b []byte) []byte { b[8] = 2; return b },
		"more packs":          func(b []byte) []byte { b[12] = 6; return append(b, make([]byte, 3*chunk.Size)...) },
		"many startup packs":  func(b []byte) []byte { b[56] = 65; return append(b, make([]byte, 63*startupSize)...) },
		"4 startups, 3 packs": func(b []byte) []byte { b[56] = 4; return append(b, make([]byte, 2*startupSize)...) },
		"an unknown pack":     func(b []byte) []byte { b[68] = 3; return b },
		"the same pack":       func(b []byte) []byte { b[68] = 2; return b },
		"no units":            func(b []byte) []byte { b[72] = 0; return b },
		"a unit too many":     func(b []byte) []byte { b[72] = 3; return b },
		"a unit too few":      func(b []byte) []byte { b[72] = 1; return b },
		"unknown flag":        func(b []byte) []byte { b[76] = 3; return b },
		"a trigger too many":  func(b []byte) []byte { b[96] = 3; return b },
		"a trigger too few":   func(b []byte) []byte { b[96] = 1; return b },
		"a trigger beyond":    func(b []byte) []byte { b[104] = 5; return b },
		"triggers not sorted": func(b []byte) []byte { b[100] = 4; return b },
		"an empty unit":       func(b []byte) []byte { copy(b[108:], make([]byte, unitSize)); return b },
		"a unit too large":    func(b []byte) []byte { b[111] = 1; return b },
	} {
		for _, extents := range []int64{n, -1} {
			if l, err := openBytes(spoil(bytes.Clone(enc)), id(9), extents); err == nil {
				t.Errorf("%s (%d extents) was accepted: %+v", name, extents, l.Startups())
			}
		}
	}
	if _, err := openBytes(enc, id(8), n); err == nil {
		t.Error("locations of another tree were accepted")
	}
	if _, err := openBytes(enc, id(9), n-1); err == nil {
		t.Error("locations of more extents were accepted")
	}
}

// Locations with as many triggers, units or packs as the format allows are accepted. With one more
// they are rejected.
func TestLocationsAtTheirBounds(t *testing.T) {
	const extents = MaxTriggers + 1
	s := Startup{Pack: id(1), Units: slices.Repeat([]uint32{1}, MaxUnits)}
	b := NewLocations(id(9))
	for i := range int64(extents) {
		b.Add(chunk.Unit{Pack: id(1)})
		s.Triggers = append(s.Triggers, i)
	}
	s.Triggers = s.Triggers[:MaxTriggers]
	b.Startup(s)
	enc := b.Encode()
	triggers := locationsHeader + startupSize + MaxTriggers*triggerSize // their end
	units := triggers + MaxUnits*unitSize
	for _, n := range []int64{extents, -1} {
		if l, err := openBytes(enc, id(9), n); err != nil || !reflect.DeepEqual(l.Startups(), []Startup{s}) {
			t.Errorf("locations at the limits (%d extents): got %v, want no error and the startup pack", n, err)
		}
		if _, err := openBytes(oneMore(enc, 60, locationsHeader+12, triggers, MaxTriggers), id(9), n); err == nil {
			t.Errorf("one trigger too many (%d extents) was accepted", n)
		}
		if _, err := openBytes(oneMore(enc, 64, locationsHeader+4, units, 1), id(9), n); err == nil {
			t.Errorf("one unit too many (%d extents) was accepted", n)
		}
	}
	for _, packs := range []int64{maxPacks, maxPacks + 1} {
		var head [locationsHeader]byte
		copy(head[:], enc[:56])
		binary.LittleEndian.PutUint32(head[12:], uint32(packs))
		binary.LittleEndian.PutUint64(head[16:], uint64(packs))
		for _, n := range []int64{packs, -1} {
			_, err := OpenLocations(zerosBehind(head[:]), locationsHeader+packs*(chunk.Size+locationSize), id(9), n)
			if (err == nil) != (packs == maxPacks) {
				t.Errorf("locations with %d packs (%d extents): got %v, want success: %t",
					packs, n, err, packs == maxPacks)
			}
		}
	}
}

// oneMore returns locations with one more element at the end of a list of the only startup pack:
// its triggers or its units. total and own are the offsets of the number of elements, in the header
// and in the pack's entry. at is the offset of the list's end.
func oneMore(enc []byte, total, own, at int, element uint32) []byte {
	enc = bytes.Clone(enc)
	for _, count := range []int{total, own} {
		binary.LittleEndian.PutUint32(enc[count:], binary.LittleEndian.Uint32(enc[count:])+1)
	}
	return slices.Insert(enc, at, binary.LittleEndian.AppendUint32(nil, element)...)
}

// zerosBehind is a reader of these bytes, followed by endless zeros.
type zerosBehind []byte

func (head zerosBehind) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	if at < int64(len(head)) {
		copy(b, head[at:])
	}
	return len(b), nil
}

// Each agrees with Unit, for more extents than it reads at a time.
func TestEachLocation(t *testing.T) {
	b := NewLocations(id(9))
	const n = 2*scanRecords + 17
	for i := range n {
		b.Add(chunk.Unit{Pack: id(1 + i%3), N: uint32(i)})
	}
	l, err := openBytes(b.Encode(), id(9), n)
	if err != nil {
		t.Fatal(err)
	}
	next := int64(0)
	err = l.Each(func(extent int64, u chunk.Unit) error {
		if want, err := l.Unit(extent); extent != next || err != nil || u != want {
			t.Fatalf("extent %d in %v, want extent %d in %v, error %v", extent, u, next, want, err)
		}
		next++
		return nil
	})
	if err != nil || next != n {
		t.Errorf("%d extents of %d, error %v", next, n, err)
	}
	for pack := range 4 { // the locations do not name the last pack
		var got, want []int64
		for i := range int64(n) {
			if i%3 == int64(pack) {
				want = append(want, i)
			}
		}
		err := l.In(id(1+pack), func(extent int64, unit uint32) {
			if int64(unit) != extent {
				t.Errorf("extent %d is in unit %d, want the unit of the same number", extent, unit)
			}
			got = append(got, extent)
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("pack %d: got %d extents, error %v; want its %d extents", pack, len(got), err, len(want))
		}
	}
	enough := errors.New("enough")
	if err := l.Each(func(int64, chunk.Unit) error { return enough }); err != enough {
		t.Errorf("got %v, want the error of fn", err)
	}
}

// A builder leaves out what exceeds the limits, so that a reader accepts the result.
func TestLocationsWithinBounds(t *testing.T) {
	b := NewLocations(id(9))
	for i := range 100 {
		b.Add(chunk.Unit{Pack: id(1 + i), N: 1})
	}
	var all []int64
	for i := range int64(200) {
		all = append(all, 150-i, 50)
	}
	b.Startup(Startup{Pack: id(200), Units: []uint32{1}})
	for _, units := range [][]uint32{{}, {1, 0}, {maxUnitBytes + 1}, slices.Repeat([]uint32{1}, MaxUnits+1)} {
		b.Startup(Startup{Pack: id(2), Units: units})
	}
	for i := range 100 {
		s := Startup{Pack: id(1 + i), Units: slices.Repeat([]uint32{maxUnitBytes}, MaxUnits/MaxStartups), Triggers: all}
		b.Startup(s)
		b.Startup(s)
	}
	encoded := b.Encode() // at all limits
	if n := MaxLocations(100); n != int64(len(encoded)) {
		t.Errorf("locations at all limits have %d bytes, want %d", len(encoded), n)
	}
	l, err := openBytes(encoded, id(9), 100)
	if err != nil {
		t.Fatal(err)
	}
	got, triggers := l.Startups(), 0
	for _, s := range got {
		triggers += len(s.Triggers)
	}
	if len(got) != MaxStartups || triggers != MaxTriggers || len(got[0].Triggers) != 100 {
		t.Errorf("%d startup packs with %d triggers, %d of the first; want %d, %d and 100", len(got), triggers,
			len(got[0].Triggers), MaxStartups, MaxTriggers)
	}

	b.startups = nil
	for i, n := range []int{MaxUnits - 10, 11, 10} { // the second one exceeds the limit
		b.Startup(Startup{Pack: id(1 + i), Units: slices.Repeat([]uint32{1}, n)})
	}
	encoded = b.Encode()
	if l, err = openBytes(encoded, id(9), 100); err != nil {
		t.Fatal(err)
	}
	if got = l.Startups(); len(got) != 2 || got[1].Pack != id(3) || len(got[1].Units) != 10 {
		t.Errorf("got %d startup packs, want 2: those that fit into the limit", len(got))
	}
}

func FuzzOpenLocations(f *testing.F) {
	enc, _, _ := sampleLocations()
	f.Add(enc)
	b := NewLocations(id(9))
	b.Add(chunk.Unit{Pack: id(1), N: 3})
	f.Add(b.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := openBytes(b, id(9), -1)
		if err != nil {
			return
		}
		again := NewLocations(id(9))
		for _, s := range l.Startups() {
			again.Startup(s)
		}
		seen := int64(0)
		err = l.Each(func(i int64, u chunk.Unit) error {
			if got, err := l.Unit(i); err != nil || got != u {
				t.Fatalf("location %d is %v, then %v, error %v", i, u, got, err)
			}
			seen++
			again.Add(u)
			return nil
		})
		if inErr := l.In(id(1), func(int64, uint32) {}); (inErr == nil) != (err == nil) {
			t.Fatalf("locations of one pack: got %v, all locations: %v; want errors of both or of neither", inErr, err)
		}
		if err == nil && seen != l.n {
			t.Fatalf("%d locations of %d", seen, l.n)
		}
		if _, err := openBytes(again.Encode(), id(9), seen); err != nil {
			t.Error(err)
		}
	})
}
