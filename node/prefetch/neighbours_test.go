package prefetch

import (
	"fmt"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/test/testkit/filetree"
)

// For a missing chunk, the rest of its file is requested, up to the bytes of one RTT. Then some
// units of neighbouring files are requested, and more of them if such units were read before. On a
// short path nothing is requested.
func TestNeighboursOfAMiss(t *testing.T) {
	type before struct{ added, used int64 } // bytes on each of the two accounts before the miss
	for name, test := range map[string]struct {
		perRTT, limit int64
		before        before
		file, other   int  // largest number of units that are requested
		spent         bool // the credit of the file's account is used up
	}{
		"short path":        {perRTT: 0, limit: plenty},
		"off":               {perRTT: 4 << 20},
		"one unit":          {perRTT: neighbourUnit, limit: plenty, file: 1},
		"four units":        {perRTT: 4 * neighbourUnit, limit: plenty, file: 4, other: 2},
		"many":              {perRTT: 4 << 20, limit: plenty, file: 80, other: neighbourProbe},
		"some is read":      {4 << 20, plenty, before{(otherPart + 1) << 20, 1 << 20}, 80, neighbourProbe, false},
		"much is read":      {20 * neighbourUnit, plenty, before{otherPart << 20, 1 << 20}, 80, 18, false},
		"does not pay":      {4 << 20, plenty, before{2 * neighbourCredit, 0}, 0, 0, false},
		"file does not pay": {perRTT: 4 << 20, limit: plenty, other: neighbourProbe, spent: true},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := shelved(t, Options{Limit: test.limit})
			s.cached, s.perRTT = nil, test.perRTT
			file, other := &d.neighbours.file, &d.neighbours.other
			for _, a := range []*account{file, other} {
				a.added.Store(test.before.added)
				a.used.Store(test.before.used)
			}
			if test.spent {
				file.added.Store(2 * neighbourCredit)
			}
			d.SetLocations(alone(t, d))
			isFirst := func(i int64) bool { return extentOf(t, d, i).First }
			first := int64(5) // becomes the first extent of a file of three extents
			for !isFirst(first) || isFirst(first+1) || isFirst(first+2) || !isFirst(first+3) {
				first++
			}
			miss := first + 1
			if _, err := d.ReadAt(t.Context(), make([]byte, 10), extentOf(t, d, miss).Offset); err != nil {
				t.Fatal(err)
			}
			d.neighbours.work.Wait()
			ofFile := min(test.file, 2)
			if got := len(d.requests.refs); got != ofFile+test.other {
				t.Errorf("%d units are requested, want %d of the file and %d of others", got, ofFile, test.other)
			}
			for i := range d.Extents().Extents {
				own := i >= first && i < first+3
				if file.marks.clear(i) && (!own || i == miss) {
					t.Errorf("extent %d counts as one of the file, want only extents %d to %d, and not %d", i, first,
						first+2, miss)
				}
				near := i >= first-int64(test.other)/2 && i <= first+2+int64(test.other)
				if other.marks.clear(i) && (own || !near) {
					t.Errorf("extent %d counts as one of another file, want only extents near the file's %d to %d", i,
						first, first+2)
				}
			}
		})
	}
}

// If a file is larger than neighbourSpan, no units of other files are requested.
func TestNeighboursOfALargeFile(t *testing.T) {
	file := func(extents int) *tree.Node {
		n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(extents) * 4096}
		for i := range extents {
			n.Content.Extents = append(n.Content.Extents,
				tree.Extent{ID: chunk.Sum(fmt.Append(nil, extents, i)), Length: 4096})
		}
		return n
	}
	s := &shelf{}
	d := s.open(filetree.ExtentsOf(t, tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{
		{Name: "large", Node: file(3 * neighbourSpan)}, {Name: "other", Node: file(1)}})), nil, Options{})
	d.SetLocations(alone(t, d))
	d.neighbours.file.added.Store(2 * neighbourCredit) // so that only other files are requested
	for _, miss := range []int64{0, neighbourSpan / 2, 3 * neighbourSpan / 2, 3*neighbourSpan - 1} {
		(&search{neighbours: d.neighbours, left: 100 * neighbourUnit,
			requested: map[chunk.Unit]bool{}}).run(miss)
	}
	if got := len(d.requests.refs); got != 0 {
		t.Errorf("%d units are requested, want none", got)
	}
}

// If little of what was requested is read, no more is requested.
func TestAccountsLimitNeighbours(t *testing.T) {
	var a account
	allowed := func() bool { return a.debt(filePart) <= neighbourCredit }
	a.added.Store(neighbourCredit)
	if !allowed() {
		t.Error("denied within the credit")
	}
	a.added.Add(filePart)
	if allowed() {
		t.Error("allowed beyond the credit, with nothing used")
	}
	a.used.Add(1)
	if !allowed() {
		t.Error("denied although enough was used")
	}
}

// Chunks that one start did not read do not count against the next start.
func TestEachStartHasItsOwnAccount(t *testing.T) {
	d, _ := shelved(t, Options{})
	file := &d.neighbours.file
	file.added.Store(2 * neighbourCredit)
	d.Begin()
	if file.debt(filePart) == 0 {
		t.Error("the account was reset although nothing was read")
	}
	if _, err := d.ReadAt(t.Context(), make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	d.Begin()
	if debt := file.debt(filePart); debt != 0 {
		t.Errorf("after a start the debt is %d bytes, want 0", debt)
	}
}

// alone returns locations in which each extent has a unit of its own.
func alone(t *testing.T, d *Device) *index.Locations {
	t.Helper()
	h := &startHub{extents: d.Extents(), locations: index.NewLocations(d.Extents().ID())}
	for i := range d.Extents().Extents {
		h.locations.Add(unitOf(i))
	}
	return h.open(t)
}

func unitOf(extent int64) chunk.Unit {
	return chunk.Unit{Pack: chunk.Sum([]byte("alone")), N: uint32(extent)}
}

// Units that have many chunks are large. So a miss requests fewer of them than of small units.
func TestNeighboursInLargeUnits(t *testing.T) {
	const perRTT = 10 * neighbourUnit
	for _, test := range []struct{ chunks, want int }{{1, 10}, {2, 10}, {10, 2}, {100, 1}} {
		s := &shelf{chunks: map[chunk.ID][]byte{}, perRTT: perRTT}
		var files []tree.Dirent
		for i := range 1000 {
			n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: neighbourUnit}
			n.Content.Extents = []tree.Extent{{ID: chunk.Sum(fmt.Append(nil, i)), Length: neighbourUnit}}
			files = append(files, tree.Dirent{Name: fmt.Sprintf("%04d", i), Node: n})
		}
		d := s.open(filetree.ExtentsOf(t, tree.NewDir(tree.Node{Mode: 0o755}, files)), nil, Options{Limit: plenty})
		h := &startHub{extents: d.Extents(), locations: index.NewLocations(d.Extents().ID())}
		for i := range d.Extents().Extents {
			h.locations.Add(unitOf(i / int64(test.chunks)))
		}
		d.SetLocations(h.open(t))
		d.neighbours.other.added.Store(2 * otherPart)
		d.neighbours.other.used.Store(2) // so that as much may be requested as arrives in an RTT
		own, _ := d.Unit(500)
		(&search{neighbours: d.neighbours, own: own, left: perRTT, requested: map[chunk.Unit]bool{}}).run(500)
		if got := len(d.requests.refs); got != test.want {
			t.Errorf("units of %d chunks: %d are requested, want %d", test.chunks, got, test.want)
		}
	}
}

// If one chunk of a requested unit is read, the whole unit has paid.
func TestReadOfARequestedUnit(t *testing.T) {
	d, _ := shelved(t, Options{})
	h := &startHub{extents: d.Extents(), locations: index.NewLocations(d.Extents().ID())}
	for i := range d.Extents().Extents {
		h.locations.Add(unitOf(i / 10))
	}
	d.SetLocations(h.open(t))
	file := &d.neighbours.file
	want := int64(0)
	for i := range int64(30) {
		e := extentOf(t, d, i)
		file.charge(i, e.Length)
		if i/10 == 1 {
			want += int64(e.Length)
		}
	}
	for range 2 {
		if _, err := d.ReadAt(t.Context(), make([]byte, 1), extentOf(t, d, 15).Offset); err != nil {
			t.Fatal(err)
		}
		if got := file.used.Load(); got != want {
			t.Errorf("%d bytes are used, want the %d of the unit", got, want)
		}
	}
}

// A start that goes on missing tries its neighbours again, although little of them was read.
func TestMissesPayForNeighbours(t *testing.T) {
	d, s := shelved(t, Options{Limit: plenty})
	s.cached, s.perRTT = nil, 1<<20
	d.SetLocations(alone(t, d))
	for _, a := range []*account{&d.neighbours.file, &d.neighbours.other} {
		a.added.Store(neighbourCredit + 60_000)
	}
	misses := 0
	for i := int64(0); len(d.requests.refs) == 0 && i < d.Extents().Extents; i++ {
		misses++
		if _, err := d.ReadAt(t.Context(), make([]byte, 1), extentOf(t, d, i).Offset); err != nil {
			t.Fatal(err)
		}
		d.neighbours.work.Wait()
	}
	if misses < 2 || len(d.requests.refs) == 0 {
		t.Errorf("after %d misses %d units are requested, want some, after more than one miss", misses,
			len(d.requests.refs))
	}
}
