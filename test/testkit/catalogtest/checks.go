package catalogtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/wire"
)

// An interrupted check continues at the place where it stopped. A worker that has lost its job
// changes nothing.
func testChecks(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	job := func() catalog.Job {
		t.Helper()
		must(t, errorOf(c.Jobs.Add(ctx, catalog.Job{Kind: kind, Key: "all"}, 0)))
		return claim(t, c, "worker", "all")
	}
	if state, err := c.Checks.Get(ctx, kind); err != nil || state.Place != "" || !state.Ended.IsZero() {
		t.Errorf("at first: %+v, %v, want nothing", state, err)
	}
	j := job()
	state := catalog.Check{Place: "packs/1", Objects: 3, Bytes: 4, Errors: 5, Report: []byte("report")}
	must(t, c.Checks.Set(ctx, j.Lease(), kind, state))
	got, err := c.Checks.Get(ctx, kind)
	if err != nil || got.Place != state.Place || got.Objects != 3 || got.Bytes != 4 || got.Errors != 5 ||
		!bytes.Equal(got.Report, state.Report) || got.Begun.IsZero() || !got.Ended.IsZero() {
		t.Errorf("while it runs: %+v, %v, want %+v", got, err, state)
	}
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	old := j
	j = job()
	if got, err = c.Checks.Get(ctx, kind); err != nil || got.Place != state.Place || !got.Ended.IsZero() {
		t.Errorf("at the beginning of the next job: %+v, %v", got, err)
	}
	must(t, c.Checks.Complete(ctx, j.Lease(), kind, state))
	if got, err = c.Checks.Get(ctx, kind); err != nil || got.Place != "" || got.Ended.IsZero() {
		t.Errorf("at the end: %+v, %v, want a check that begins anew", got, err)
	}
	if err := c.Checks.Set(ctx, old.Lease(), kind, state); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("a worker without its job: %v, want ErrLost", err)
	}
}

// The catalog lists the objects that it names, page by page.
func testObjects(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	x, y := chunk.Sum([]byte("x")), chunk.Sum([]byte("y"))
	Publish(t, c, "a", "sha256:"+x.String())
	Publish(t, c, "b", "sha256:"+x.String(), "sha256:"+y.String())
	tree := TreeOf("sha256:" + x.String())
	must(t, c.Starts.SetLayout(ctx, &catalog.Layout{Tree: tree, Locations: chunk.Sum([]byte("new")), LocationsWire: 7,
		IndexWire: 8,
		Startup:   []byte("s"), Packs: []catalog.StartupPack{{ID: x, Size: 9}, {ID: packOf("a"), Size: 500}}}))
	for _, k := range []struct {
		kind catalog.ObjectKind
		want map[chunk.ID]int64
	}{
		{catalog.Indexes, map[chunk.ID]int64{tree: 8, TreeOf("sha256:" + x.String() + "/sha256:" + y.String()): 0}},
		{catalog.Records, map[chunk.ID]int64{x: -1, y: -1}},
		{catalog.Locations, map[chunk.ID]int64{chunk.Sum([]byte("new")): 7,
			chunk.Sum([]byte("locations of sha256:" + x.String() + "/sha256:" + y.String())): 0}},
		{catalog.Packs, map[chunk.ID]int64{packOf("a"): 500, packOf("b"): 500, x: 9}}, // pack a is a startup pack, too
	} {
		var got []chunk.ID
		after := chunk.ID{}
		for {
			page, err := c.Checks.Objects(ctx, k.kind, after, 1)
			must(t, err)
			if len(page) == 0 {
				break
			}
			after = page[0].ID
			size, err := c.Checks.ObjectSize(ctx, k.kind, after)
			if want, known := k.want[after]; !known || page[0].Size != want || size != want || err != nil {
				t.Errorf("kind %d: %+v, %d (%v), want %d bytes", k.kind, page[0], size, err, want)
			}
			got = append(got, after)
		}
		if len(got) != len(k.want) || !slices.IsSortedFunc(got,
			func(a, b chunk.ID) int { return bytes.Compare(a[:], b[:]) }) {
			t.Errorf("kind %d: %v, want the keys of %v in their order", k.kind, got, k.want)
		}
		if _, err := c.Checks.ObjectSize(ctx, k.kind, chunk.Sum([]byte("none"))); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("size of an unknown object: %v, want ErrNotFound", err)
		}
	}
	if n, size, err := c.Checks.ObjectBytes(ctx); n != 10 || size != 8+7+3*500+9 || err != nil {
		t.Errorf("%d objects of %d bytes (%v)", n, size, err)
	}
	if found, err := c.Checks.Inconsistencies(ctx); err != nil || len(found) > 0 {
		t.Errorf("inconsistencies %v, %v, want none", found, err)
	}
	claimed := catalog.Claim{Owner: "o", Keys: []string{"packs/1"}}
	must(t, c.Claims.Acquire(ctx, claimed, -long)) // an expired claim counts, too
	if among, err := c.Claims.Among(ctx, []string{"packs/1", "packs/2"}); err != nil || len(among) != 1 ||
		!among["packs/1"] {
		t.Errorf("claimed objects: %v, %v, want packs/1", among, err)
	}
}

// Objects are held while at least one backup has a lease.
func testHolds(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	held := func(want bool) {
		t.Helper()
		if got, err := c.Claims.IsHeld(ctx); err != nil || got != want {
			t.Errorf("objects are held: %t, %v, want %t", got, err, want)
		}
	}
	held(false)
	must(t, c.Claims.Hold(ctx, "a", long))
	must(t, c.Claims.Hold(ctx, "b", long))
	must(t, c.Claims.EndHold(ctx, "a"))
	held(true)
	must(t, c.Claims.ExtendHold(ctx, "b", -time.Second))
	held(false)
	for _, owner := range []string{"a", "b"} {
		if err := c.Claims.ExtendHold(ctx, owner, long); !errors.Is(err, catalog.ErrLost) {
			t.Errorf("extended a backup that has ended: %v, want ErrLost", err)
		}
	}
	held(false)
}

// If chunks move after their places were read, the locations that were made from these places have
// to be checked: locations of a publication, of a layout or of a repaired tree, and locations that
// were just renewed.
func testMovedMeanwhile(t *testing.T, c *catalog.Catalog) {
	ctx, g := t.Context(), c.Garbage
	l, claim := collecting(t, c)
	Publish(t, c, "a", "x", "y")
	move := func() {
		t.Helper()
		must(t, c.MoveChunks(ctx, claim, []catalog.Pack{{ID: chunk.Sum([]byte("next")), Size: 1,
			Units: []catalog.Unit{{Plain: 1, Stored: 1}}}},
			[]catalog.Chunk{{ID: chunk.Sum([]byte("x"))}}, []chunk.ID{packOf("a")}))
	}
	toCheck := func() []catalog.MovedLayout {
		t.Helper()
		moved, err := g.MovedLayouts(ctx)
		must(t, err)
		return moved
	}
	move()
	for _, isLate := range []bool{true, false} {
		moved := toCheck()
		if len(moved) != 1 {
			t.Fatalf("locations to check %+v, want those of the tree", moved)
		}
		count, err := c.Collections(ctx)
		must(t, err)
		if isLate {
			move()
		}
		must(t, g.SettleLocations(ctx, claim, l, moved[0], count.Moves, moved[0].Locations, 1))
		if left := len(toCheck()); (left == 1) != isLate {
			t.Errorf("chunks moved after the look-up: %t; locations to check after the renewal: %d, want 1 only if so",
				isLate, left)
		}
	}

	for _, isLate := range []bool{true, false} {
		name := fmt.Sprint("late ", isLate)
		image, j := begin(t, c, name)
		p := publication(t, c, image, name)
		p.Lease, p.Located = j.Lease(), []chunk.ID{packOf("a")}
		var err error
		p.Collections, err = c.Collections(ctx)
		must(t, err)
		if isLate {
			move()
		}
		must(t, c.Publish(ctx, p))
		isToCheck := slices.ContainsFunc(toCheck(), func(l catalog.MovedLayout) bool { return l.Tree == TreeOf(name) })
		if isToCheck != isLate {
			t.Errorf("chunks moved after the look-up: %t; new locations are to be checked: %t, want the same",
				isLate, isToCheck)
		}
	}

	settle := func() {
		t.Helper()
		count, err := c.Collections(ctx)
		must(t, err)
		for _, m := range toCheck() {
			must(t, g.SettleLocations(ctx, claim, l, m, count.Moves, m.Locations, 1))
		}
	}
	tree := TreeOf("x/y")
	for what, set := range map[string]func(moves int64) error{
		"layout": func(moves int64) error {
			return c.Starts.SetLayout(ctx, &catalog.Layout{Tree: tree, Claim: claim, Moves: moves})
		},
		"repaired tree": func(moves int64) error {
			return c.Repairs.RenewTree(ctx, claim, moves, catalog.Tree{ID: tree})
		},
	} {
		for _, isLate := range []bool{true, false} {
			count, err := c.Collections(ctx)
			must(t, err)
			if isLate {
				move()
			}
			settle() // the locations that the tree had before
			must(t, set(count.Moves))
			isToCheck := slices.ContainsFunc(toCheck(), func(l catalog.MovedLayout) bool {
				return l.Tree == tree && l.Moved == catalog.AnyPack
			})
			if isToCheck != isLate {
				t.Errorf("%s: chunks moved after the look-up: %t; its locations are to be checked: %t, want the same",
					what, isLate, isToCheck)
			}
		}
	}
}

// A publication cannot replace the tree of a chain by another tree of the same format, because a
// node may hold the chain's tree.
func testOtherTree(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	setHeld(t, c, "n1", TreeOf("a"))
	image, j := begin(t, c, "other")
	p := publication(t, c, image, "a")
	p.Lease, p.Tree.ID = j.Lease(), TreeOf("other")
	p.Statement.Tree = p.Tree.ID
	if err := c.Publish(ctx, p); !errors.Is(err, catalog.ErrOtherTree) {
		t.Errorf("published another tree: %v, want ErrOtherTree", err)
	}
	remove(t, c, "one", "other")
	l, claim := collecting(t, c)
	must(t, c.Garbage.NoteUnserved(ctx, l))
	removeDead(t, c, l, claim)
	if chain, err := c.Chain(ctx, "a"); err != nil || chain.Statement == nil || chain.Statement.Tree != TreeOf("a") {
		t.Errorf("the chain of the held tree: %+v, %v", chain, err)
	}
	if layers, err := c.Layers(ctx, "a"); err != nil || !slices.Equal(layers, []string{"a"}) {
		t.Errorf("layers of the held tree: %v, %v", layers, err)
	}
}

// The number of a chunk, a pack or a unit is not used again after its row was removed: the marks of
// a collection, and the rows of layers, name chunks by their numbers.
func testNumbers(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	l, claim := collecting(t, c)
	newest := func() (numbers [3]int64) { // of a chunk, its pack and its unit
		t.Helper()
		Publish(t, c, "a", "x")
		id := chunk.Sum([]byte("x"))
		known, err := c.Numbers(ctx, []chunk.ID{id})
		must(t, err)
		remove(t, c, "a")
		removeDead(t, c, l, claim)
		marks, packs := suspects(t, c)
		if len(packs) != 1 || len(packs[0].Units) != 1 {
			t.Fatalf("packs to remove: %+v, want one with one unit", packs)
		}
		numbers = [3]int64{known[id], packs[0].N, packs[0].Units[0].N}
		if n, _, err := c.Garbage.ForgetPacks(ctx, claim, l, marks, noneStuck, packs); n != 1 || err != nil {
			t.Fatalf("removed %d packs, %v, want one", n, err)
		}
		return numbers
	}
	before := newest()
	for i, after := range newest() {
		if what := []string{"chunk", "pack", "unit"}[i]; after <= before[i] {
			t.Errorf("a new %s has the number %d, a removed one had %d", what, after, before[i])
		}
	}
}

// Chunks move to other packs. A pack without chunks is forgotten.
func testMoveChunks(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "a", "x", "y")
	x, y := chunk.Sum([]byte("x")), chunk.Sum([]byte("y"))
	old, next := packOf("a"), chunk.Sum([]byte("next"))
	placed, err := c.Repairs.PackChunks(ctx, old)
	if err != nil || len(placed) != 2 || placed[0].At.Pack != old {
		t.Fatalf("the pack has %+v, %v, want 2 chunks", placed, err)
	}
	numbers := []int64{placed[0].N, placed[1].N}
	slices.Sort(numbers)
	if layers, err := c.Repairs.LayersWith(ctx, numbers); err != nil || len(layers) != 2 || len(layers["x"]) != 1 {
		t.Errorf("layers %v, %v, want x and y", layers, err)
	}
	if layers, err := c.Repairs.LayersWith(ctx, []int64{numbers[1] + 1}); err != nil || len(layers) != 0 {
		t.Errorf("layers %v, %v, want none", layers, err)
	}
	blobs, err := c.Repairs.LayerBlobs(ctx, "y")
	if err != nil || len(blobs) != 1 || blobs[0].Digest != "blob of y" || blobs[0].Size != 100 {
		t.Errorf("blobs %+v, %v", blobs, err)
	}
	if trees, err := c.Repairs.TreesWith(ctx, "x"); err != nil || len(trees) != 1 || trees[0].Tree != TreeOf("x/y") {
		t.Errorf("trees %+v, %v, want that of the chain above", trees, err)
	}
	if trees, err := c.Repairs.TreesNaming(ctx, chunk.Sum([]byte("locations of x/y"))); err != nil || len(trees) != 1 ||
		trees[0].Chain != "x/y" {
		t.Errorf("trees with the locations %+v, %v", trees, err)
	}
	if layers, err := c.Repairs.ChainLayers(ctx, "x/y"); err != nil || !slices.Equal(layers, []string{"x", "y"}) {
		t.Errorf("layers of the chain: %v, %v", layers, err)
	}
	claim := catalog.Claim{Owner: "o", Keys: []string{"packs/next"}}
	must(t, c.Claims.Acquire(ctx, claim, long))
	move := func(id chunk.ID, pack chunk.ID) error {
		return c.MoveChunks(ctx, claim, []catalog.Pack{{ID: pack, Size: 1,
			Units: []catalog.Unit{{Plain: 1, Stored: 1}}}},
			[]catalog.Chunk{{ID: id}}, []chunk.ID{old})
	}
	must(t, move(x, next))
	if moved, err := c.Garbage.MovedLayouts(ctx); err != nil || len(moved) != 1 || moved[0].Tree != TreeOf("x/y") ||
		moved[0].Moved != catalog.AnyPack {
		t.Errorf("locations to check: %+v (%v), want those of the tree", moved, err)
	}
	if has, err := c.HasPack(ctx, old); err != nil || !has {
		t.Errorf("the old pack is forgotten (%v) while it has a chunk", err)
	}
	must(t, move(y, chunk.Sum([]byte("last"))))
	if has, err := c.HasPack(ctx, old); err != nil || has {
		t.Errorf("the old pack is still known (%v)", err)
	}
	if unit, err := c.Unit(ctx, x); err != nil || unit.Pack != next {
		t.Errorf("the chunk is in %v (%v), want the new pack", unit, err)
	}
	if found, err := c.Checks.Inconsistencies(ctx); err != nil || len(found) > 0 {
		t.Errorf("inconsistencies %v, %v, want none", found, err)
	}
	must(t, c.Claims.Extend(ctx, claim, -time.Second))
	other := catalog.Claim{Owner: "p", Keys: claim.Keys}
	must(t, c.Claims.Acquire(ctx, other, long))
	if err := move(x, chunk.Sum([]byte("late"))); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("moved without the claim: %v, want ErrLost", err)
	}
	locations := chunk.Sum([]byte("renewed"))
	must(t, c.Repairs.RenewTree(ctx, other, 0, catalog.Tree{ID: TreeOf("x/y"), Locations: locations, Packs: 2}))
	if got, err := c.Starts.Locations(ctx, TreeOf("x/y")); err != nil || got != locations {
		t.Errorf("locations %s, %v, want the renewed ones", got, err)
	}
	if j, err := c.Jobs.Open(ctx, catalog.LayoutJob, TreeOf("x/y").String()); err != nil {
		t.Errorf("job of the layout: %+v, %v, want one", j, err)
	}
}
