package plan

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
)

// program returns the files of a sample image: the number of chunks of each, and their names.
func program(files int) (map[string]int, []string) {
	sizes := map[string]int{}
	var names []string
	for i := range files {
		name := fmt.Sprintf("/lib/%03d", i)
		names = append(names, name)
		sizes[name] = 1 + i%4
	}
	return sizes, names
}

// noisy returns the recording of a start that reads the files in names, a few of them in another
// order, and three of the files in others.
func noisy(r *rand.Rand, sizes map[string]int, names, others []string) trace.Recording {
	names = slices.Clone(names)
	for range len(names) / 10 {
		i := r.IntN(len(names) - 3)
		names[i], names[i+3] = names[i+3], names[i]
	}
	for range 3 {
		names = slices.Insert(names, r.IntN(len(names)), others[r.IntN(len(others))])
	}
	rec := reading(sizes, names...)
	at := time.Duration(0)
	for i := range rec.Entries {
		at += time.Duration(r.IntN(20)) * time.Millisecond
		rec.Entries[i].At = at
	}
	return rec
}

// Starts that differ in a few files, in order and in time are one workload. Once three are known,
// one more does not change the layout.
func TestNoise(t *testing.T) {
	sizes, names := program(200)
	tr := sampleTree(t, sizes)
	r := rand.New(rand.NewPCG(1, 1))
	var kept []trace.Recording
	var before []Pack
	for i := range 32 {
		kept = Keep(kept, []trace.Recording{noisy(r, sizes, names[:60], names[100:])})
		all := Workloads(kept)
		if len(all) != 1 || all[0].Starts != int64(i+1) || len(kept) > maxSamples {
			t.Fatalf("after %d starts: %d workloads, the first of %d starts, and %d recordings; "+
				"want one of all starts, at most %d recordings", i+1, len(all), all[0].Starts, len(kept), maxSamples)
		}
		packs := lay(t, tr, kept)
		if i >= maxSamples && !reflect.DeepEqual(packs, before) {
			t.Errorf("start %d changed the layout, want the same packs as before", i+1)
		}
		before = packs
	}
	for i, name := range names {
		if got := has(before, name, sizes[name]); i < 60 && got != 0 || i >= 60 && got == 0 {
			t.Errorf("%s is in pack %d, want 0 for the 60 files that all starts read, another for other files", name,
				got)
		}
	}
}

// Absurd recordings hardly change the packs of other starts.
func TestAbsurdTraces(t *testing.T) {
	sizes, names := program(400)
	sizes["/big/file"] = 3000
	tr := sampleTree(t, sizes)
	var kept []trace.Recording
	for range 20 {
		kept = Keep(kept, []trace.Recording{reading(sizes, names[:50]...), reading(sizes, names[:100]...)})
	}
	pages := trace.Recording{Starts: 1}
	for i, name := range append(slices.Clone(names), "/big/file") {
		pages.Entries = append(pages.Entries, trace.Entry{At: time.Duration(i), Path: name, Length: 1})
	}
	all := reading(sizes, append(slices.Clone(names), "/big/file")...)
	kept = Keep(kept, []trace.Recording{
		{Starts: 1}, all, pages,
		{Starts: 1, Entries: []trace.Entry{{Path: "/lib/399", Length: 1}}},
		{Starts: 1, Entries: []trace.Entry{{Path: "/gone", Length: 1 << 43, Chunks: []chunk.ID{chunk.Sum(nil)}}}},
	})
	packs := lay(t, tr, kept)
	for _, n := range []int{50, 100} {
		fetched, used := fetch(packs, tr, reading(sizes, names[:n]...))
		if !packs[0].AtMount || fetched > used*5/4 || fetched < used {
			t.Errorf("a start that reads %d files fetches %d bytes, want %d to 5/4 of this, at mount: %v", n, fetched,
				used, packs[0].AtMount)
		}
	}
	if fetched, used := fetch(packs, tr, all); fetched < used*3/4 {
		t.Errorf("a start that reads all files fetches %d bytes, want at least 3/4 of %d", fetched, used)
	}
	if fetched, used := fetch(packs, tr, trace.Recording{Starts: 1}); fetched > 12<<20 {
		t.Errorf("a start that reads nothing fetches %d bytes and uses %d, want 12 MiB at most", fetched, used)
	}
}

// A rare workload does not keep the others' chunks from being fetched at mount, however little it
// reads. It gets packs of its own.
func TestNegligibleWorkload(t *testing.T) {
	sizes := map[string]int{"/d/program": 300, "/d/page": 1, "/d/other": 10}
	tr := sampleTree(t, sizes)
	// A recording of files that the tree does not have gives no packs.
	gone := trace.Recording{Starts: maxStarts, Entries: []trace.Entry{{Path: "/gone", Length: 1 << 20}}}
	program := reading(sizes, "/d/program")
	if packs := lay(t, tr, []trace.Recording{gone, program}); len(packs) == 0 || !packs[0].AtMount {
		t.Errorf("beside a recording of missing files, a program has %d packs, want one at mount", len(packs))
	}
	if known, err := tr.Known(t.Context(), []trace.Recording{gone, program}); err != nil || len(known) != 1 ||
		known[0].Entries[0].Path != "/d/program" {
		t.Errorf("the tree knows %v (%v), want only the recording of the program", known, err)
	}
	for starts, atMount := range map[int64]bool{outlierShare: false, 4 * outlierShare: true, 40 * outlierShare: true} {
		program, page := reading(sizes, "/d/program"), reading(sizes, "/d/page", "/d/other")
		program.Starts, page.Starts = starts, 2
		packs := lay(t, tr, []trace.Recording{program, page})
		if got := len(packs) > 0 && packs[0].AtMount && has(packs, "/d/program",
			sizes["/d/program"]) == 0; got != atMount {
			t.Errorf("%d starts and two of another workload: the program is fetched at mount: %v, want %v", starts, got,
				atMount)
		}
		if at := has(packs, "/d/other", sizes["/d/other"]); at < 0 || atMount && packs[at].AtMount {
			t.Errorf("%d starts and two of another workload: the chunks of the two are in pack %d, "+
				"want one that is not fetched at mount", starts, at)
		}
	}
}

// A recording that names the same file very often is read within a bound. Without this bound the
// test takes hours.
func TestRecordingsThatRepeatThemselves(t *testing.T) {
	sizes := map[string]int{"/d/large": 12_000}
	tr := sampleTree(t, sizes)
	all := make([]trace.Recording, 16)
	for i := range all {
		e := trace.Entry{Path: fmt.Sprintf("/d/%d", i), Length: 1 << 31}
		if i%2 == 0 {
			e = reading(sizes, "/d/large").Entries[0]
			e.Chunks = nil
		}
		all[i] = trace.Recording{Starts: 1, Entries: slices.Repeat([]trace.Entry{e}, trace.MaxEntries)}
	}
	kept := Keep(nil, all)
	if packs := lay(t, tr, kept); has(packs[:1], "/d/large", 1) != 0 {
		t.Errorf("%d recordings are kept, %d packs, want the large file in the first pack", len(kept), len(packs))
	}
}

// A unit has no more chunks than nodes accept, however short they are.
func TestUnitsOfShortChunks(t *testing.T) {
	var items []*item
	for i := range 3 * maxUnitChunks {
		items = append(items, &item{use: use{int64(i), chunk.Ref{ID: chunk.Sum(fmt.Append(nil, i)), Length: 1}}})
	}
	if cut := units(items); len(cut) != 3 || len(cut[0]) != maxUnitChunks {
		t.Errorf("%d units, the first of %d chunks, want 3 of %d", len(cut), len(cut[0]), maxUnitChunks)
	}
}

// fetch returns the bytes of the packs that a start fetches, and the bytes of the tree that the
// start reads.
func fetch(packs []Pack, tr *Tree, r trace.Recording) (fetched, used int64) {
	wanted := make([]bool, len(packs))
	all, err := tr.uses(context.Background(), []trace.Recording{r})
	if err != nil {
		panic(err)
	}
	for _, u := range all[0] {
		used += int64(u.ref.Length)
	}
	for i, p := range packs {
		wanted[i] = p.AtMount
		for _, u := range all[0] {
			wanted[i] = wanted[i] || slices.Contains(p.Triggers, u.extent)
		}
		if wanted[i] {
			fetched += p.Bytes
		}
	}
	return fetched, used
}

// Files that the next build of an image has at other paths are found by their chunks.
func TestMovedFiles(t *testing.T) {
	sizes := map[string]int{"/old/a": 3, "/old/b": 2, "/old/c": 4}
	moved := rootOf(map[string]int{"/old/b": 2})
	a := rootOf(map[string]int{"/old/a": 3}).Children()[0].Node
	tr := open(t, addDir(moved, "new", a))
	packs := lay(t, tr, Keep(nil, []trace.Recording{reading(sizes, "/old/c", "/old/a", "/old/b")}))
	if len(packs) != 1 || has(packs, "/old/a", 3) != 0 || has(packs, "/old/b", 2) != 0 || packs[0].Bytes != 5*64*kib {
		t.Errorf("got packs %+v, want one with the chunks of a and b", packs)
	}
}

// The number and size of the recordings kept are bounded, and so are the counts of their starts.
// The newest workload stays.
func TestKeepWithinBounds(t *testing.T) {
	var kept []trace.Recording
	for i := range 24 {
		r := trace.Recording{Starts: 1}
		for j := range 100 {
			r.Entries = append(r.Entries, trace.Entry{Path: fmt.Sprintf("/%d/%d", i, j), Length: 4096})
		}
		kept = Keep(kept, []trace.Recording{r, r, r, r, r})
		if n := len(Workloads(kept)); n != min(i+1, maxWorkloads) || len(kept) > maxWorkloads*maxSamples {
			t.Fatalf("after %d programs: %d workloads of %d recordings, want %d of at most %d", i+1, n, len(kept),
				min(i+1, maxWorkloads), maxWorkloads*maxSamples)
		}
		if last := kept[len(kept)-1].Entries[0].Path; last != r.Entries[0].Path {
			t.Fatalf("the last recording begins with %s, want the newest workload, with %s", last, r.Entries[0].Path)
		}
	}
	long := trace.Recording{Starts: 1}
	for j := range 20_000 {
		long.Entries = append(long.Entries, trace.Entry{Path: fmt.Sprintf("/long/%d", j), Length: 1,
			Chunks: make([]chunk.ID, 3)})
	}
	for i := range 9 {
		long.Entries[0] = trace.Entry{Path: fmt.Sprint("/", i), Length: 1 << 42}
		kept = Keep(kept, []trace.Recording{long})
	}
	size := 0
	for _, r := range kept {
		for i := range r.Entries {
			size += r.Entries[i].Size()
		}
	}
	if size > maxKept || len(kept) < 3 {
		t.Errorf("%d recordings of %d bytes are kept, want at least 3, and at most %d bytes", len(kept), size, maxKept)
	}
	// The number of starts that a recording stands for is bounded.
	kept = Keep(nil, []trace.Recording{{Starts: 1 << 40, Entries: long.Entries[:10]}})
	for range 10 {
		kept = Keep(kept, []trace.Recording{{Starts: 1, Entries: long.Entries[20:30]}})
	}
	if all := Workloads(kept); len(all) != 2 || all[0].Starts > maxStarts {
		t.Errorf("%d workloads, the first of %d starts, want 2, and at most %d starts", len(all), all[0].Starts,
			maxStarts)
	}
}

// similar, which stops early, returns what the full comparison does. Recordings that are added one
// by one are kept like recordings that are added at once.
func TestSimilar(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	var all []trace.Recording
	base := r.Perm(60)
	for range 200 {
		var x trace.Recording
		for _, n := range base[:40+r.IntN(20)] {
			x.Entries = append(x.Entries, trace.Entry{Path: fmt.Sprint("/f", n), Offset: 4096 * r.Int64N(2),
				Length: 81920 + 4096*r.Int64N(10)})
		}
		x.Starts = 1
		all = append(all, x)
	}
	found := 0
	for i := 1; i < len(all); i++ {
		p, q := profileOf(all[i-1]), profileOf(all[i])
		both, either := int64(0), int64(0)
		for n := range 60 {
			for block := range uint64(4) {
				key := maphash.String(seed, fmt.Sprint("/f", n)) + block
				both += min(p.parts[key], q.parts[key])
				either += max(p.parts[key], q.parts[key])
			}
		}
		want := float64(both) / float64(either)
		if want < minSimilarity {
			want = 0
		} else {
			found++
		}
		if got := p.similar(q); got != want {
			t.Fatalf("similarity of recordings %d and %d: %v, want %v", i-1, i, got, want)
		}
	}
	if found == 0 || found > 150 {
		t.Fatalf("%d of 199 pairs are similar, want 1 to 150: otherwise the test proves nothing", found)
	}
	atOnce, one := Sort(nil), []trace.Recording{}
	atOnce.Add(all)
	for _, x := range all {
		k := Sort(one)
		k.Add([]trace.Recording{x})
		one = k.Recordings()
	}
	if fmt.Sprint(atOnce.Recordings()) != fmt.Sprint(one) {
		t.Error("recordings added at once and one by one are not kept alike")
	}
}
