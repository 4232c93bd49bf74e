package plan

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/format/tree"
)

const kib = 1024

// sampleTree returns a tree with files. files has the number of chunks, of 64 KiB each, by path. No
// two files share a chunk. A file without chunks is empty.
func sampleTree(t testing.TB, files map[string]int) *Tree {
	t.Helper()
	return open(t, rootOf(files))
}

// rootOf returns a root directory with files, as sampleTree has them.
func rootOf(files map[string]int) *tree.Node {
	children := map[string][]tree.Dirent{}
	for path, chunks := range files {
		n := &tree.Node{Mode: tree.ModeRegular | 0o755, Nlink: 1}
		for i := range chunks {
			n.Content.Extents = append(n.Content.Extents, tree.Extent{ID: chunkOf(path, i), Length: 64 * kib})
			n.Size += 64 * kib
		}
		dir, name := split(path)
		children[dir] = append(children[dir], tree.Dirent{Name: name, Node: n})
	}
	root := []tree.Dirent{}
	for dir, names := range children {
		root = append(root, tree.Dirent{Name: dir, Node: tree.NewDir(tree.Node{Mode: 0o755}, names)})
	}
	return tree.NewDir(tree.Node{Mode: 0o755}, root)
}

// split splits /dir/name.
func split(path string) (dir, name string) {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			return path[1:i], path[i+1:]
		}
	}
	panic("tests name files as /dir/name, not " + path)
}

func chunkOf(path string, i int) chunk.ID { return chunk.Sum(fmt.Append(nil, path, i)) }

func open(t testing.TB, root *tree.Node) *Tree {
	t.Helper()
	var metadata, whole, extents bytes.Buffer
	made, err := index.Make(&tree.Tree{Root: root}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(&whole, bytes.NewReader(metadata.Bytes())); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Receive(&whole, made.ID(), &extents, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	m, err := index.OpenMap(bytes.NewReader(extents.Bytes()), made.ID(), index.NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Open(bytes.NewReader(metadata.Bytes()), int64(metadata.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return NewTree(image, m)
}

// reading returns the recording of a start that reads whole files, one after the other. sizes is as
// for sampleTree.
func reading(sizes map[string]int, paths ...string) trace.Recording {
	r := trace.Recording{Starts: 1}
	for i, path := range paths {
		e := trace.Entry{At: time.Duration(i) * time.Millisecond, Path: path, Length: int64(sizes[path]) * 64 * kib}
		for j := range sizes[path] {
			e.Chunks = append(e.Chunks, chunkOf(path, j))
		}
		r.Entries = append(r.Entries, e)
	}
	return r
}

// Keep adds recordings to those kept of an image and returns what is then kept.
func Keep(kept, more []trace.Recording) []trace.Recording {
	k := Sort(kept)
	k.Add(more)
	return k.Recordings()
}

// lay returns the packs for recordings. It fails the test if a chunk is in two packs or a bound is
// exceeded.
func lay(t testing.TB, tr *Tree, kept []trace.Recording) []Pack {
	t.Helper()
	return layWithGuesses(t, tr, kept)
}

// layWithGuesses is lay with guesses.
func layWithGuesses(t testing.TB, tr *Tree, kept []trace.Recording, guesses ...trace.Recording) []Pack {
	t.Helper()
	packs, err := tr.Layout(t.Context(), kept, guesses, maxLayout)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[chunk.ID]bool{}
	triggers := 0
	for i, p := range packs {
		size := int64(0)
		for _, unit := range p.Units {
			for _, ref := range unit {
				if seen[ref.ID] {
					t.Fatalf("chunk %s is in the packs twice, want once", ref.ID.Short())
				}
				seen[ref.ID] = true
				size += int64(ref.Length)
			}
		}
		triggers += len(p.Triggers)
		if size != p.Bytes || size == 0 || p.AtMount == (len(p.Triggers) > 0) {
			t.Errorf("pack %d has %d bytes in its units, and Bytes is %d; fetched at mount: %v; %d triggers; "+
				"want some bytes, the same Bytes, and either triggers or a fetch at mount", i, size, p.Bytes, p.AtMount,
				len(p.Triggers))
		}
	}
	if len(packs) > index.MaxStartups || triggers > index.MaxTriggers {
		t.Errorf("%d packs with %d triggers, want at most %d with %d", len(packs), triggers, index.MaxStartups,
			index.MaxTriggers)
	}
	return packs
}

// has returns the index of the pack with all chunks of a file. It returns -1 if no pack has any of
// them, and -2 if several packs do.
func has(packs []Pack, path string, chunks int) int {
	at := -1
	for i := range chunks {
		for j, p := range packs {
			for _, unit := range p.Units {
				for _, ref := range unit {
					if ref.ID == chunkOf(path, i) {
						if i > 0 && at != j {
							return -2
						}
						at = j
					}
				}
			}
		}
	}
	return at
}

// A trace of device offsets becomes a recording of ranges of files, in the order of the reads.
// Reads that continue a range are merged with it.
func TestRecord(t *testing.T) {
	files := map[string]int{"/bin/a": 2, "/bin/b": 1, "/bin/c": 3}
	tr := sampleTree(t, files) // a, b and c are consecutive on the device
	got, err := tr.Recording(t.Context(), trace.Trace{Reads: []trace.Read{
		{At: 1 * time.Millisecond, Offset: 192 * kib, Length: 4 * kib},   // c
		{At: 2 * time.Millisecond, Offset: 60 * kib, Length: 128 * kib},  // a, b
		{At: 3 * time.Millisecond, Offset: 196 * kib, Length: 100 * kib}, // c
		{At: 4 * time.Millisecond, Offset: 296 * kib, Length: 4 * kib},   // c
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := trace.Recording{Starts: 1, Entries: []trace.Entry{
		{At: 1 * time.Millisecond, Path: "/bin/c", Offset: 0, Length: 4 * kib,
			Chunks: []chunk.ID{chunkOf("/bin/c", 0)}},
		{At: 2 * time.Millisecond, Path: "/bin/a", Offset: 60 * kib, Length: 68 * kib,
			Chunks: []chunk.ID{chunkOf("/bin/a", 0), chunkOf("/bin/a", 1)}},
		{At: 2 * time.Millisecond, Path: "/bin/b", Offset: 0, Length: 60 * kib,
			Chunks: []chunk.ID{chunkOf("/bin/b", 0)}},
		{At: 3 * time.Millisecond, Path: "/bin/c", Offset: 4 * kib, Length: 104 * kib,
			Chunks: []chunk.ID{chunkOf("/bin/c", 0), chunkOf("/bin/c", 1)}},
	}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the trace became the recording %v\nwant %v", got, want)
	}
	if again, err := trace.ParseText(trace.EncodeText([]trace.Recording{got})); err != nil ||
		fmt.Sprint(again[0]) != fmt.Sprint(got) {
		t.Errorf("encoded as text and parsed, the recording is %v (error %v), want %v", again, err, got)
	}
}

// One workload is fetched at mount, in the order of its reads.
func TestOneWorkload(t *testing.T) {
	files := map[string]int{"/bin/a": 2, "/bin/b": 1, "/bin/c": 3, "/bin/inline": 0}
	tr := sampleTree(t, files)
	packs := lay(t, tr, Keep(nil, []trace.Recording{reading(files, "/bin/c", "/bin/gone", "/bin/inline", "/bin/a")}))
	if len(packs) != 1 || !packs[0].AtMount || packs[0].Bytes != 5*64*kib ||
		packs[0].Units[0][0].ID != chunkOf("/bin/c", 0) {
		t.Errorf("got packs %+v, want one of 5 chunks that is fetched at mount and begins with /bin/c", packs)
	}
}

// Chunks that all workloads use are fetched at mount, the others by triggers.
func TestWorkloads(t *testing.T) {
	files := map[string]int{"/bin/sh": 20, "/bin/python": 100, "/lib/root": 200, "/lib/uproot": 120}
	tr := sampleTree(t, files)
	kept := Keep(nil, []trace.Recording{
		reading(files, "/bin/sh"),
		reading(files, "/bin/sh", "/bin/python"),
		reading(files, "/bin/sh", "/bin/python", "/lib/root"),
		reading(files, "/bin/sh", "/bin/python", "/lib/uproot"),
	})
	packs := lay(t, tr, kept)
	for i, path := range []string{"/bin/sh", "/bin/python", "/lib/root", "/lib/uproot"} {
		if has(packs, path, files[path]) != i || packs[i].AtMount != (i == 0) {
			t.Errorf("%s is in pack %d, want %d, and only pack 0 is fetched at mount", path,
				has(packs, path, files[path]), i)
		}
	}
	if len(packs) != 4 || len(packs[1].Triggers) != triggersEach {
		t.Errorf("%d packs, want 4, the second with %d triggers", len(packs), triggersEach)
	}
}

// If all starts that read one pack later read another one, too, the first pack's triggers start the
// fetch of both.
func TestWhatFollowsComesAtOnce(t *testing.T) {
	files := map[string]int{"/bin/sh": 20, "/lib/root": 200, "/lib/uproot": 120, "/lib/numbers": 150}
	tr := sampleTree(t, files)
	packs := lay(t, tr, Keep(nil, []trace.Recording{
		reading(files, "/bin/sh"),
		reading(files, "/bin/sh", "/lib/root", "/lib/numbers"),
		reading(files, "/bin/sh", "/lib/numbers", "/lib/uproot"),
	}))
	root, numbers, uproot := has(packs, "/lib/root", 200), has(packs, "/lib/numbers", 150), has(packs, "/lib/uproot",
		120)
	if len(packs) != 4 || root < 1 || numbers < 1 || uproot < 1 {
		t.Fatalf("%d packs: root is in %d, numbers in %d, uproot in %d; want 4 packs, and none of them in pack 0",
			len(packs), root, numbers, uproot)
	}
	both := func(a, b int) (n int) {
		for _, extent := range packs[a].Triggers {
			if slices.Contains(packs[b].Triggers, extent) {
				n++
			}
		}
		return n
	}
	if both(numbers, root) != triggersEach || len(packs[numbers].Triggers) != 2*triggersEach {
		t.Errorf("%d of the %d triggers of numbers are also triggers of root, want %d of %d", both(numbers, root),
			len(packs[numbers].Triggers), triggersEach, 2*triggersEach)
	}
	if both(uproot, numbers) != 0 || both(uproot, root) != 0 {
		t.Error("uproot shares triggers with another pack, want none: it is fetched by starts that may not need it")
	}
}

// addDir returns the tree with one more directory in its root.
func addDir(root *tree.Node, name string, dir *tree.Node) *tree.Node {
	return tree.NewDir(tree.Node{Mode: 0o755}, append(root.Children(), tree.Dirent{Name: name, Node: dir}))
}
