package catalogtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/wire"
)

// setLayout sets the startup packs of a tree, of 100 bytes each.
func setLayout(t *testing.T, c *catalog.Catalog, tree chunk.ID, packs ...chunk.ID) {
	t.Helper()
	l := &catalog.Layout{Tree: tree, Locations: chunk.Sum(fmt.Append(nil, packs))}
	for _, id := range packs {
		l.Packs = append(l.Packs, catalog.StartupPack{ID: id, Size: 100})
	}
	must(t, c.Starts.SetLayout(t.Context(), l))
}

func testLocations(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	tree := TreeOf("a")
	first := chunk.Sum([]byte("locations of a"))
	if got, err := c.Starts.Locations(ctx, tree); err != nil || got != first {
		t.Errorf("locations: %v, %v, want %v", got, err, first)
	}
	if _, err := c.Starts.Locations(ctx, TreeOf("none")); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("locations of an unknown tree: %v, want ErrNotFound", err)
	}
	pack := chunk.Sum([]byte("pack"))
	setLayout(t, c, tree, pack)
	second, err := c.Starts.Locations(ctx, tree)
	must(t, err)
	// Publishing a known tree again does not replace its locations.
	Publish(t, c, "two", "a")
	if got, err := c.Starts.Layout(ctx, tree); err != nil || got.Locations != second || len(got.Packs) != 1 ||
		got.Packs[0].ID != pack {
		t.Errorf("layout: got %+v (%v), want the locations %s and pack %s", got, err, second.Short(), pack.Short())
	}
	stale := &catalog.Layout{Tree: tree, Locations: chunk.Sum([]byte("stale")), Before: first}
	if err := c.Starts.SetLayout(ctx, stale); !errors.Is(err, catalog.ErrChanged) {
		t.Errorf("set a layout in place of a layout that was already replaced: %v, want ErrChanged", err)
	}
	for id, want := range map[chunk.ID]bool{first: false, second: true} {
		if got, err := c.Starts.HasLocations(ctx, id); err != nil || got != want {
			t.Errorf("locations %s are known: %v, %v, want %v", id.Short(), got, err, want)
		}
	}
	if known, err := c.HasPack(ctx, pack); err != nil || !known {
		t.Errorf("whether the startup pack is known: got %v (%v), want true", known, err)
	}
}

// Retired returns the packs that were retired before a given time. If the other retired packs have
// more than a given number of bytes, it also returns those that were retired first, but none that
// were retired after a second given time.
func testRetiredPacks(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	tree := TreeOf("a")
	var ids []chunk.ID
	var after []time.Time // after[i] is between the retirement of pack i-1 and that of pack i
	for i := range byte(4) {
		ids = append(ids, chunk.Sum([]byte{i}))
		setLayout(t, c, tree, ids[i])
		time.Sleep(3 * time.Millisecond) // times have a resolution of a millisecond
		after = append(after, time.Now())
		time.Sleep(3 * time.Millisecond)
	}
	never := time.UnixMilli(0)
	for i, test := range []struct {
		before, later time.Time
		bytes         int64
		want          []chunk.ID
	}{
		{never, never, 1000, nil},
		{after[1], never, 1000, ids[:1]},
		{after[3], never, 1000, ids[:3]},
		{never, after[3], 1000, nil},
		{never, after[3], 200, ids[:1]},
		{never, after[3], 0, ids[:3]},
		{never, after[2], 0, ids[:2]},
	} {
		got, err := c.Starts.Retired(ctx, test.before, test.later, test.bytes, 10)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("case %d: %v, %v, want %v", i, got, err, test.want)
		}
	}
	setLayout(t, c, tree, ids[2]) // in use again
	if got, err := c.Starts.Retired(ctx, after[3], never, 1000, 10); err != nil || !slices.Equal(got, ids[:2]) {
		t.Errorf("retired packs after pack 2 is used again: got %v (%v), want %v", got, err, ids[:2])
	}
	setLayout(t, c, TreeOf("b"), ids[2])
	setLayout(t, c, tree) // another tree still has the pack
	must(t, c.Starts.DropRetired(ctx, catalog.Claim{}, ids))
	if held, err := c.Starts.StartHoldings(ctx); err != nil || held.Packs != 1 || held.PackBytes != 100 ||
		held.Live != 100 {
		t.Errorf("packs after DropRetired: got %+v (%v), want one of 100 bytes, which is in use", held, err)
	}
}

// If space is short, the least recently used trees lose their startup packs until they are used
// again.
func testEvictedPacks(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	shared := chunk.Sum([]byte("shared"))
	begin := time.Now()
	used := map[chunk.ID]time.Time{}
	for i, name := range []string{"a", "b", "c"} {
		Publish(t, c, name, name)
		endLayout(t, c, TreeOf(name))
		setLayout(t, c, TreeOf(name), chunk.Sum([]byte("own "+name)), shared)
		used[TreeOf(name)] = begin.Add(time.Duration(i+1) * time.Hour)
	}
	must(t, c.Starts.Used(ctx, used, time.UnixMilli(0)))
	if lost, err := c.Starts.Lose(ctx, 400); err != nil || len(lost) != 0 {
		t.Errorf("with room for all: %v, %v, want none lost", lost, err)
	}
	lost, err := c.Starts.Lose(ctx, 300)
	if want := []chunk.ID{TreeOf("a")}; err != nil || !slices.Equal(lost, want) {
		t.Errorf("with room for three packs: %v, %v, want %v", lost, err, want)
	}
	if use, err := c.Starts.TreeUse(ctx, TreeOf("a")); err != nil || use.Lost.IsZero() {
		t.Errorf("the evicted tree: %+v, %v, want it without startup packs", use, err)
	}
	endLayout(t, c, TreeOf("a"))
	use := map[chunk.ID]time.Time{TreeOf("a"): begin.Add(9 * time.Hour)}
	must(t, c.Starts.Used(ctx, use, time.UnixMilli(1))) // the tree lost its packs too recently
	if use, err := c.Starts.TreeUse(ctx, TreeOf("a")); err != nil || use.Lost.IsZero() {
		t.Errorf("used too soon: %+v, %v, want no startup packs", use, err)
	}
	wantNoJob(t, c, layoutSlot)
	must(t, c.Starts.Used(ctx, use, time.Now().Add(time.Hour)))
	if use, err := c.Starts.TreeUse(ctx, TreeOf("a")); err != nil || !use.Lost.IsZero() {
		t.Errorf("used again: %+v, %v, want it with startup packs", use, err)
	}
	endLayout(t, c, TreeOf("a"))
}

var layoutSlot = []catalog.Slot{{Kind: catalog.LayoutJob}}

// claimLayout claims the job that makes a tree's layout.
func claimLayout(t *testing.T, c *catalog.Catalog, tree chunk.ID) catalog.Job {
	t.Helper()
	j, err := c.Jobs.Claim(t.Context(), "worker", layoutSlot, long)
	if err != nil || j.Key != tree.String() {
		t.Fatalf("claimed %+v, %v, want the layout of tree %s", j, err, tree.Short())
	}
	return j
}

// endLayout claims and ends the job that makes a tree's layout.
func endLayout(t *testing.T, c *catalog.Catalog, tree chunk.ID) {
	t.Helper()
	end(t, c, claimLayout(t, c, tree), catalog.Outcome{State: wire.JobDone}, wire.JobDone)
}

// A new tree, and a tree with a new trace, gets a job that makes its layout. One worker at a time
// has the job. A worker that has lost its job changes nothing.
func testLayoutJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	wantNoJob(t, c, layoutSlot)
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	j := claimLayout(t, c, TreeOf("a"))
	endLayout(t, c, TreeOf("b"))
	must(t, c.Starts.AddTrace(ctx, TreeOf("a"), "", []byte("trace"), 0))
	wantNoJob(t, c, layoutSlot)
	layout := catalog.Layout{Tree: TreeOf("a"), Startup: []byte("made"), Lease: j.Lease()}
	must(t, c.Starts.SetLayout(ctx, &layout))
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobQueued) // the trace came meanwhile
	if err := c.Starts.SetLayout(ctx, &layout); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("set a layout after the end of its job: %v, want ErrLost", err)
	}
	endLayout(t, c, TreeOf("a"))
	must(t, c.Starts.AddTrace(ctx, TreeOf("a"), "", []byte("trace"), long)) // waits for further ones
	wantNoJob(t, c, layoutSlot)
	must(t, c.Starts.AddRecordings(ctx, TreeOf("a"), []byte("recordings")))
	endLayout(t, c, TreeOf("a"))
	must(t, c.Starts.RestLayout(ctx, TreeOf("a"), long))
	must(t, c.Starts.AddTrace(ctx, TreeOf("a"), "", []byte("trace"), 0))
	wantNoJob(t, c, layoutSlot)
	images, err := c.TreeImages(ctx, TreeOf("a"))
	if err != nil || len(images) != 1 || images[0].Name != "one" {
		t.Errorf("images of the tree: %+v, %v", images, err)
	}
}

// A tree that has been without an image for a while loses its traces and recordings.
func testUnserved(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	tree := TreeOf("a")
	must(t, c.Starts.AddTrace(ctx, tree, "", []byte("trace"), 0))
	must(t, c.Starts.SetLayout(ctx, &catalog.Layout{Tree: tree, Startup: []byte("startup")}))
	endLayout(t, c, tree)
	must(t, c.Remove(ctx, kind, "one", ""))
	must(t, c.Starts.Unserved(ctx, time.Now().Add(-time.Hour)))
	use, err := c.Starts.TreeUse(ctx, tree)
	if err != nil || use.Served || use.Unserved.IsZero() {
		t.Errorf("just removed: %+v, %v, want it unserved", use, err)
	}
	wantNoJob(t, c, layoutSlot)
	time.Sleep(3 * time.Millisecond)
	must(t, c.Starts.Unserved(ctx, time.Now()))
	if traces, err := c.Starts.Traces(ctx, tree); err != nil || len(traces) != 0 {
		t.Errorf("removed for a long time: %d traces, %v, want none", len(traces), err)
	}
	endLayout(t, c, tree)
	Publish(t, c, "one", "a")
	must(t, c.Starts.Unserved(ctx, time.Now()))
	if use, err = c.Starts.TreeUse(ctx, tree); err != nil || !use.Served || !use.Unserved.IsZero() {
		t.Errorf("added again: %+v, %v, want it served", use, err)
	}
}

// Derived trees, which are made on request, are evicted, but not those that have become the top of
// an image, and not those that somebody holds.
func testDerived(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a", "b", "c", "d")
	for _, chain := range []string{"a", "a/b", "a/b/c"} {
		p := publication(t, c, catalog.Image{Name: "derived"}, chain)
		p.Blobs, p.Layers, p.Chunks, p.Packs = nil, nil, nil, nil
		p.Tree.IndexWire = 1000
		must(t, c.Publish(ctx, p))
		time.Sleep(3 * time.Millisecond)
	}
	trees := func(derived []catalog.Derived) (ids []chunk.ID) {
		for _, d := range derived {
			ids = append(ids, d.Tree)
		}
		return ids
	}
	older := []chunk.ID{TreeOf("a")}
	for _, bound := range [][2]int64{{2, 1 << 20}, {9, 2500}} {
		surplus, err := c.SurplusDerived(ctx, int(bound[0]), bound[1])
		if err != nil || !slices.Equal(trees(surplus), older) {
			t.Errorf("surplus beyond %d: %v, %v, want the tree used least recently", bound, surplus, err)
		}
	}
	all, err := c.SurplusDerived(ctx, 0, 0)
	if err != nil || len(all) != 3 {
		t.Fatalf("all derived trees: %v, %v, want three", all, err)
	}
	setHeld(t, c, "n1", TreeOf("a"), TreeOf("a/b/c"))
	for most, want := range [][]chunk.ID{{TreeOf("a/b")}, nil} {
		if surplus, err := c.SurplusDerived(ctx, most, 1<<20); err != nil || !slices.Equal(trees(surplus), want) {
			t.Errorf("surplus beyond %d while two trees are held: %v, %v, want %v", most, surplus, err, want)
		}
	}
	Publish(t, c, "two", "a") // "a" becomes a top
	must(t, c.ForgetDerived(ctx, catalog.Claim{}, all))
	for chain, want := range map[string]bool{"a": true, "a/b": false, "a/b/c": true, "a/b/c/d": true} {
		if known, err := c.HasTree(ctx, TreeOf(chain)); err != nil || known != want {
			t.Errorf("tree of %s is known: %v, %v, want %v", chain, known, err, want)
		}
	}
}

// The number of pending traces is bounded for each tree.
func testTraces(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	tree := TreeOf("a")
	add := func() error { return c.Starts.AddTrace(ctx, tree, "sender", []byte("trace"), 0) }
	most := fill(t, add)
	must(t, c.Starts.AddTrace(ctx, TreeOf("b"), "", []byte("trace"), 0))
	// A trace that does not fit queues the layout again.
	endLayout(t, c, tree)
	endLayout(t, c, TreeOf("b"))
	if err := add(); !errors.Is(err, catalog.ErrFull) {
		t.Errorf("one more trace: %v, want ErrFull", err)
	}
	endLayout(t, c, tree)
	must(t, c.Remove(ctx, kind, "one", ""))
	for _, id := range []chunk.ID{tree, TreeOf("none")} {
		if err := c.Starts.AddTrace(ctx, id, "", []byte("trace"), 0); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("trace of a tree without an image: %v, want ErrNotFound", err)
		}
	}
	traces, err := c.Starts.Traces(ctx, tree)
	if err != nil || len(traces) != most || !traces[0].Raw || traces[0].Sender != "sender" ||
		string(traces[0].Body) != "trace" {
		t.Fatalf("%d traces are pending, %v, want %d", len(traces), err, most)
	}
	must(t, c.Starts.KeepRecordings(ctx, tree, nil, []byte("kept"), traces[9].N))
	traces, err = c.Starts.Traces(ctx, tree)
	kept, keptErr := c.Starts.Recordings(ctx, tree)
	if err != nil || keptErr != nil || len(traces) != most-10 || string(kept) != "kept" {
		t.Errorf("after merging ten: %d traces, recordings %q, %v, %v", len(traces), kept, err, keptErr)
	}
}

// The bytes of pending traces are bounded, too: for all trees together, and for each tree. Only the
// first trace of a tree may be longer than the bound for the tree.
func testLongTraces(t *testing.T, c *catalog.Catalog) {
	long := make([]byte, 32<<20)
	trees := 0
	fill(t, func() error {
		trees++
		name := fmt.Sprint(trees)
		Publish(t, c, name, name)
		if err := c.Starts.AddRecordings(t.Context(), TreeOf(name), long); err != nil {
			return err
		}
		if err := c.Starts.AddTrace(t.Context(), TreeOf(name), "", []byte("trace"), 0); !errors.Is(err,
			catalog.ErrFull) {
			t.Errorf("a trace after a long one: %v, want ErrFull", err)
		}
		return nil
	})
	if trees < 3 || trees > 64 {
		t.Errorf("%d trees have a long trace, want 2 to 63", trees-1)
	}
}

// Recordings are replaced only if neither the recordings nor the tree's traces have changed since
// they were read.
func testRecordings(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	tree := TreeOf("a")
	add := func() []catalog.Trace {
		t.Helper()
		must(t, c.Starts.AddTrace(ctx, tree, "", []byte("trace"), 0))
		traces, err := c.Starts.Traces(ctx, tree)
		must(t, err)
		return traces
	}
	before := add()
	if n, err := c.Starts.CutRecordings(ctx, tree, nil, []byte("none"), true); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	err := c.Starts.KeepRecordings(ctx, tree, nil, []byte("forgotten"), before[0].N)
	if !errors.Is(err, catalog.ErrChanged) {
		t.Errorf("keep recordings that were removed: %v, want ErrChanged", err)
	}
	traces := add()
	must(t, c.Starts.KeepRecordings(ctx, tree, []byte("none"), []byte("some"), traces[0].N))
	for _, all := range []bool{false, true} {
		_, err := c.Starts.CutRecordings(ctx, tree, []byte("none"), []byte("less"), all)
		if !errors.Is(err, catalog.ErrChanged) {
			t.Errorf("remove outdated recordings: %v, want ErrChanged", err)
		}
	}
	endLayout(t, c, tree)
	add()
	if n, err := c.Starts.CutRecordings(ctx, tree, []byte("some"), []byte("less"), false); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	if kept, err := c.Starts.Recordings(ctx, tree); err != nil || string(kept) != "less" {
		t.Errorf("recordings %q, %v, want %q", kept, err, "less")
	}
	endLayout(t, c, tree)
}

// An image inherits the recordings of the previous image in its repository.
func testInherited(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	must(t, c.Starts.AddTrace(ctx, TreeOf("a"), "", []byte("trace"), 0))
	traces, err := c.Starts.Traces(ctx, TreeOf("a"))
	must(t, err)
	must(t, c.Starts.KeepRecordings(ctx, TreeOf("a"), nil, []byte("recordings"), traces[0].N))
	Publish(t, c, "two", "b")
	if got, err := c.Starts.Recordings(ctx, TreeOf("b")); err != nil || string(got) != "recordings" {
		t.Errorf("recordings of the next image: %q, %v, want those of the previous one", got, err)
	}
	if got, err := c.Starts.Recordings(ctx, TreeOf("none")); err != nil || got != nil {
		t.Errorf("recordings of an unknown tree: %q, %v, want none", got, err)
	}
}
