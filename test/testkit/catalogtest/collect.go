package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/wire"
)

// noneStuck says that no locations are stuck.
var noneStuck = &catalog.Stuck{}

// collecting returns the lease of a job for a collection, and a claim of an object.
func collecting(t *testing.T, c *catalog.Catalog) (catalog.Lease, catalog.Claim) {
	t.Helper()
	ctx := t.Context()
	must(t, errorOf(c.Jobs.Add(ctx, catalog.Job{Kind: "collect", Key: "all"}, 0)))
	j, err := c.Jobs.Claim(ctx, "collector", []catalog.Slot{{Kind: "collect"}}, long)
	must(t, err)
	claim := catalog.Claim{Owner: "collector", Keys: []string{"packs/1"}}
	must(t, c.Claims.Acquire(ctx, claim, long))
	return j.Lease(), claim
}

func remove(t *testing.T, c *catalog.Catalog, names ...string) {
	t.Helper()
	for _, name := range names {
		must(t, c.Remove(t.Context(), kind, name, ""))
	}
}

// consistent fails the test if the catalog finds inconsistencies between its tables.
func consistent(t *testing.T, c *catalog.Catalog) {
	t.Helper()
	if found, err := c.Checks.Inconsistencies(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("inconsistencies %v, %v, want none", found, err)
	}
}

// removeDead removes dead trees, chains and layers, without the delay that usually keeps them.
func removeDead(t *testing.T, c *catalog.Catalog, l catalog.Lease, claim catalog.Claim) {
	t.Helper()
	ctx := t.Context()
	trees, err := c.Garbage.UnservedTrees(ctx, 0)
	must(t, err)
	if _, _, err := c.Garbage.ForgetTrees(ctx, claim, l, 0, trees); err != nil {
		t.Fatal(err)
	}
	for removed := int64(1); removed > 0; {
		removed, err = c.Garbage.ForgetChains(ctx, l, 10)
		must(t, err)
	}
	dead, err := c.Garbage.DeadLayers(ctx, 10)
	must(t, err)
	must(t, errorOf(c.Garbage.ForgetLayers(ctx, claim, l, dead)))
}

// suspects returns the marks of the chunks of all layers, and the use of the packs that have
// chunks without a mark, or units without chunks.
func suspects(t *testing.T, c *catalog.Catalog) (*catalog.Marks, []catalog.PackUse) {
	t.Helper()
	marks, err := c.Garbage.MarkChunks(t.Context(), nil)
	must(t, err)
	numbers, err := c.Garbage.SuspectPacks(t.Context(), marks)
	must(t, err)
	var packs []catalog.PackUse
	for _, n := range numbers {
		p, err := c.Garbage.PackUse(t.Context(), marks, n)
		must(t, err)
		packs = append(packs, p)
	}
	return marks, packs
}

// A collection removes the trees, chains, layers and packs that no image needs, in this order, and
// nothing else. Before it removes something that was found dead, it checks again that it is dead.
func testCollection(t *testing.T, c *catalog.Catalog) {
	ctx, g := t.Context(), c.Garbage
	Publish(t, c, "keeps", "a", "b")
	Publish(t, c, "goes", "a", "x")
	Publish(t, c, "held", "y")
	Publish(t, c, "comes back", "z")
	setHeld(t, c, "n1", TreeOf("y"))
	remove(t, c, "goes", "held", "comes back")
	l, claim := collecting(t, c)
	must(t, g.NoteUnserved(ctx, l))
	names := map[chunk.ID]string{TreeOf("a/x"): "a/x", TreeOf("y"): "y", TreeOf("z"): "z"}
	var found []catalog.UnservedTree
	for _, delay := range []time.Duration{long, 0} {
		var err error
		found, err = g.UnservedTrees(ctx, delay)
		must(t, err)
		var got []string
		for _, u := range found {
			got = append(got, fmt.Sprintf("%s of %s held %t dead %t known %t",
				names[u.Tree], u.Name, u.Held, u.Dead, !u.Since.IsZero()))
		}
		slices.Sort(got)
		isDead := delay == 0
		want := []string{fmt.Sprintf("a/x of goes held false dead %t known true", isDead),
			"y of held held true dead false known true",
			fmt.Sprintf("z of comes back held false dead %t known true", isDead)}
		if !slices.Equal(got, want) {
			t.Errorf("trees without an image, after %v: %q, want %q", delay, got, want)
		}
	}
	Publish(t, c, "came back", "z")
	moved := slices.Clone(found)
	for i := range moved {
		moved[i].Locations = chunk.Sum([]byte("before"))
	}
	for what, attempt := range map[string]func() (int64, int64, error){
		"too early":            func() (int64, int64, error) { return g.ForgetTrees(ctx, claim, l, long, found) },
		"with other locations": func() (int64, int64, error) { return g.ForgetTrees(ctx, claim, l, 0, moved) },
	} {
		if n, bytes, err := attempt(); n != 0 || bytes != 0 || err != nil {
			t.Errorf("%s, %d trees of %d bytes were removed (%v)", what, n, bytes, err)
		}
	}
	if n, _, err := g.ForgetTrees(ctx, claim, l, 0, found); n != 1 || err != nil {
		t.Errorf("removed %d trees, %v, want the one that is not held and did not come back", n, err)
	}
	lineage, err := g.Lineage(ctx)
	if err != nil || len(lineage.Chains) != 5 || lineage.Chains["a/x"].Parent != "a" || lineage.Used["a/x"] ||
		!lineage.Used["a/b"] || len(lineage.Trees) != 3 {
		t.Errorf("lineage %+v, %v", lineage, err)
	}
	for _, want := range []int64{1, 0} {
		if n, err := g.ForgetChains(ctx, l, 10); n != want || err != nil {
			t.Errorf("removed %d chains, %v, want %d", n, err, want)
		}
	}
	if dead, err := g.DeadLayers(ctx, 10); err != nil || !slices.Equal(dead, []string{"x"}) {
		t.Errorf("dead layers %v, %v, want x", dead, err)
	}
	if n, err := g.ForgetLayers(ctx, claim, l, []string{"a", "x", "y"}); n != 1 || err != nil {
		t.Errorf("removed %d layers, %v, want the one without a chain", n, err)
	}
	marks, packs := suspects(t, c)
	if len(packs) != 1 || packs[0].ID != packOf("goes") || !packs[0].IsDead() || packs[0].Live() != 0 {
		t.Fatalf("packs to look at: %+v, want that of the removed image", packs)
	}
	stuck := &catalog.Stuck{Packs: map[chunk.ID]bool{packs[0].ID: true}}
	if n, _, err := g.ForgetPacks(ctx, claim, l, marks, stuck, packs); n != 0 || err != nil {
		t.Errorf("removed %d packs, %v, want none: stuck locations name it", n, err)
	}
	if n, bytes, err := g.ForgetPacks(ctx, claim, l, marks, noneStuck, packs); n != 1 || bytes != 500 || err != nil {
		t.Errorf("removed %d packs of %d bytes, %v", n, bytes, err)
	}
	if _, packs = suspects(t, c); len(packs) != 0 {
		t.Errorf("packs to look at afterwards: %+v", packs)
	}
	consistent(t, c)
	if body, err := g.LastCollection(ctx); body != nil || err != nil {
		t.Errorf("the last collection: %s, %v, want none", body, err)
	}
	must(t, g.SetLastCollection(ctx, l, []byte(`1`)))
	must(t, g.SetLastCollection(ctx, l, []byte(`{"trees": 1}`)))
	if body, err := g.LastCollection(ctx); string(body) != `{"trees": 1}` || err != nil {
		t.Errorf("the last collection: %s, %v", body, err)
	}
}

// A publication that refers to something that a collection has removed meanwhile fails, and changes
// nothing. A pack is not removed if a new layer has one of its chunks.
func testCollected(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	x := chunk.Sum([]byte("x"))
	Publish(t, c, "goes", "x")
	known, err := c.Numbers(ctx, []chunk.ID{x})
	must(t, err)
	before, err := c.Collections(ctx)
	must(t, err)
	remove(t, c, "goes")
	l, claim := collecting(t, c)
	image, j := begin(t, c, "new")
	with := func(change func(*catalog.Publication)) *catalog.Publication {
		p := publication(t, c, image, "a")
		p.Lease, p.Collections = j.Lease(), before
		change(p)
		return p
	}
	publications := map[string]*catalog.Publication{
		"layer": with(func(p *catalog.Publication) {
			p.Blobs = append(p.Blobs, catalog.Blob{Digest: "blob of x", Size: 100, DiffID: "x", Chain: "a/x"})
		}),
		"chunk": with(func(p *catalog.Publication) { p.Layers[0].Known = []int64{known[x]} }),
		"pack":  with(func(p *catalog.Publication) { p.Located = []chunk.ID{packOf("goes")} }),
		"tree":  with(func(p *catalog.Publication) { p.Tree.ID, p.KnownTree = TreeOf("x"), true }),
		"chain": with(func(p *catalog.Publication) {
			p.Image, p.Blobs, p.Layers, p.Chunks, p.Packs, p.Statement.Chain = 0, nil, nil, nil, nil, "x"
		}),
	}
	removeDead(t, c, l, claim)
	marks, packs := suspects(t, c)
	if n, _, err := c.Garbage.ForgetPacks(ctx, claim, l, marks, noneStuck, packs); n != 1 || err != nil {
		t.Fatalf("removed %d packs, %v, want one", n, err)
	}
	if after, err := c.Collections(ctx); err != nil || after.Removals <= before.Removals || after.Moves != 0 {
		t.Errorf("collections %+v after %+v, %v, want more removals", after, before, err)
	}
	inventory, err := c.Inventory(ctx)
	must(t, err)
	for what, p := range publications {
		if err := c.Publish(ctx, p); !errors.Is(err, catalog.ErrCollected) {
			t.Errorf("publish with a removed %s: %v, want ErrCollected", what, err)
		}
	}
	if got, err := c.Inventory(ctx); err != nil || got != inventory {
		t.Errorf("failed publications have left %+v, %v, want %+v", got, err, inventory)
	}
	must(t, c.Publish(ctx, with(func(*catalog.Publication) {})))
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobDone)

	// The pack of a removed image is found dead. Then a layer is published that has its chunk.
	Publish(t, c, "goes again", "x")
	known, err = c.Numbers(ctx, []chunk.ID{x})
	must(t, err)
	remove(t, c, "goes again")
	removeDead(t, c, l, claim)
	marks, packs = suspects(t, c)
	image, j = begin(t, c, "other")
	p := publication(t, c, image, "other")
	p.Lease = j.Lease()
	p.Collections, err = c.Collections(ctx)
	must(t, err)
	p.Layers[0].Known = []int64{known[x]}
	must(t, c.Publish(ctx, p))
	if n, _, err := c.Garbage.ForgetPacks(ctx, claim, l, marks, noneStuck, packs); n != 0 || err != nil ||
		len(packs) != 1 {
		t.Errorf("removed %d of %d packs, %v, want none: a new layer has the chunk", n, len(packs), err)
	}
	if unit, err := c.Unit(ctx, x); err != nil || unit.Pack != packOf("goes again") {
		t.Errorf("the chunk is in %v, %v", unit, err)
	}
	consistent(t, c)
}

// sparse makes a pack with two chunks, one of which is needed. It returns the marks, and the use of
// the pack.
func sparse(
	t *testing.T, c *catalog.Catalog, l catalog.Lease, claim catalog.Claim,
) (*catalog.Marks, catalog.PackUse) {
	t.Helper()
	Publish(t, c, "one", "a", "b")
	Publish(t, c, "two", "a")
	remove(t, c, "one")
	removeDead(t, c, l, claim)
	marks, packs := suspects(t, c)
	if len(packs) != 1 || len(packs[0].Units) != 2 || packs[0].IsDead() || packs[0].Live() != 400 {
		t.Fatalf("packs to look at: %+v, want one of which a unit is needed", packs)
	}
	return marks, packs[0]
}

// rewriting copies the needed units of a pack into a new one.
func rewriting(from catalog.PackUse, claim catalog.Claim) *catalog.Rewriting {
	r := &catalog.Rewriting{From: []catalog.PackUse{from}, To: catalog.Pack{ID: chunk.Sum([]byte("new")), Size: 400},
		Claim: claim}
	for _, u := range from.Units {
		if len(u.Needed) > 0 {
			r.Units, r.Whole = append(r.Units, u), append(r.Whole, u.IsWhole())
			r.To.Units = append(r.To.Units, catalog.Unit{Plain: u.Plain, Stored: u.Stored})
		}
	}
	return r
}

// When a pack was rewritten, its needed chunks are in the new pack at once. The old pack stays
// until no locations name it, and for a given time after that.
func testRewriting(t *testing.T, c *catalog.Catalog) {
	ctx, g := t.Context(), c.Garbage
	l, claim := collecting(t, c)
	marks, pack := sparse(t, c, l, claim)
	nothing := rewriting(catalog.PackUse{N: pack.N, ID: pack.ID}, claim)
	if err := g.Rewrite(ctx, l, marks, nothing); !errors.Is(err, catalog.ErrChanged) {
		t.Errorf("rewritten without a chunk that is needed: %v, want ErrChanged", err)
	}
	must(t, g.Rewrite(ctx, l, marks, rewriting(pack, claim)))
	unit, err := c.Unit(ctx, chunk.Sum([]byte("a")))
	if want := (chunk.Unit{Pack: chunk.Sum([]byte("new"))}); err != nil || unit != want {
		t.Errorf("the needed chunk is in %v, %v, want the new pack", unit, err)
	}
	if _, err := c.Unit(ctx, chunk.Sum([]byte("b"))); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the other chunk: %v, want ErrNotFound", err)
	}
	consistent(t, c)
	old := func(keep time.Duration) []catalog.StartupPack {
		t.Helper()
		all, err := g.OldRewritten(ctx, keep, 10)
		must(t, err)
		return all
	}
	if kept, err := g.RewrittenPacks(ctx); err != nil || len(kept) != 1 || kept[pack.ID] != 500 {
		t.Errorf("kept packs %v, %v, want the old one", kept, err)
	}
	layouts, err := g.MovedLayouts(ctx)
	if err != nil || len(layouts) != 1 || layouts[0].Tree != TreeOf("a") || layouts[0].Moved == catalog.AnyPack {
		t.Fatalf("locations to check: %+v, %v, want those of the tree", layouts, err)
	}
	renewed, other := chunk.Sum([]byte("renewed")), layouts[0]
	other.Locations = renewed
	must(t, g.SettleLocations(ctx, claim, l, other, 0, chunk.Sum([]byte("late")), 7))
	for what, stuck := range map[string]*catalog.Stuck{
		"other locations": {Layouts: []catalog.MovedLayout{other}},
		"the pack":        {Layouts: layouts, Packs: map[chunk.ID]bool{pack.ID: true}},
		"nothing":         noneStuck,
	} {
		must(t, g.RetireRewritten(ctx, l, stuck))
		if len(old(0)) > 0 {
			t.Errorf("the old pack is retired while locations may name it: stuck is %s", what)
		}
	}
	must(t, g.SettleLocations(ctx, claim, l, layouts[0], 0, renewed, 7))
	if got, err := c.Starts.Locations(ctx, TreeOf("a")); err != nil || got != renewed {
		t.Errorf("locations %s, %v, want the renewed ones", got, err)
	}
	must(t, g.RetireRewritten(ctx, l, noneStuck))
	if len(old(long)) > 0 || len(old(0)) != 1 {
		t.Errorf("packs that are no longer kept: %v within the time, %v after it", old(long), old(0))
	}
	if bytes, err := g.DropRewritten(ctx, claim, l, long, old(0)); bytes != 0 || err != nil {
		t.Errorf("dropped %d bytes within the time, %v", bytes, err)
	}
	if bytes, err := g.DropRewritten(ctx, claim, l, 0, old(0)); bytes != 500 || err != nil {
		t.Errorf("dropped %d bytes, %v, want 500", bytes, err)
	}
	if has, err := c.HasPack(ctx, pack.ID); has || err != nil {
		t.Errorf("the old pack is known: %t, %v", has, err)
	}
}

// A collection that has lost its job, or the claim of its objects, changes nothing.
func testLostCollection(t *testing.T, c *catalog.Catalog) {
	ctx, g := t.Context(), c.Garbage
	l, claim := collecting(t, c)
	marks, pack := sparse(t, c, l, claim)
	Publish(t, c, "goes", "x")
	remove(t, c, "goes")
	trees, err := g.UnservedTrees(ctx, 0)
	must(t, err)
	if len(trees) != 1 {
		t.Fatalf("unserved trees %+v, want one", trees)
	}
	before := func() string {
		t.Helper()
		inventory, err := c.Inventory(ctx)
		must(t, err)
		collections, err := c.Collections(ctx)
		must(t, err)
		last, err := g.LastCollection(ctx)
		must(t, err)
		return fmt.Sprint(inventory, collections, string(last))
	}
	want := before()
	lost, unclaimed := l, claim
	lost.Fence--
	unclaimed.Keys = append(slices.Clone(claim.Keys), "packs/2")
	for what, call := range map[string]func(context.Context, catalog.Lease, catalog.Claim) error{
		"trees": func(ctx context.Context, l catalog.Lease, claim catalog.Claim) error {
			return errorOf2(g.ForgetTrees(ctx, claim, l, 0, trees))
		},
		"layers": func(ctx context.Context, l catalog.Lease, claim catalog.Claim) error {
			return errorOf(g.ForgetLayers(ctx, claim, l, []string{"x"}))
		},
		"packs": func(ctx context.Context, l catalog.Lease, claim catalog.Claim) error {
			return errorOf2(g.ForgetPacks(ctx, claim, l, marks, noneStuck, []catalog.PackUse{pack}))
		},
		"rewriting": func(ctx context.Context, l catalog.Lease, claim catalog.Claim) error {
			return g.Rewrite(ctx, l, marks, rewriting(pack, claim))
		},
		"locations": func(ctx context.Context, l catalog.Lease, claim catalog.Claim) error {
			return g.SettleLocations(ctx, claim, l, catalog.MovedLayout{Tree: TreeOf("a")}, 0, chunk.ID{}, 1)
		},
		"old packs": func(ctx context.Context, l catalog.Lease, claim catalog.Claim) error {
			return errorOf(g.DropRewritten(ctx, claim, l, 0, nil))
		},
	} {
		if err := call(ctx, lost, claim); !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s without the job: %v, want ErrLost", what, err)
		}
		if err := call(ctx, l, unclaimed); !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s without the claim: %v, want ErrLost", what, err)
		}
	}
	for what, err := range map[string]error{
		"note trees":  g.NoteUnserved(ctx, lost),
		"retire":      g.RetireRewritten(ctx, lost, noneStuck),
		"keep result": g.SetLastCollection(ctx, lost, []byte(`{}`)),
	} {
		if !errors.Is(err, catalog.ErrLost) {
			t.Errorf("%s without the job: %v, want ErrLost", what, err)
		}
	}
	if got := before(); got != want {
		t.Errorf("the catalog has %s, want %s", got, want)
	}
	if _, _, err := g.ForgetTrees(ctx, claim, l, 0, trees); err != nil {
		t.Fatal(err)
	}
	if _, err := g.ForgetChains(ctx, lost, 10); !errors.Is(err, catalog.ErrLost) {
		t.Errorf("chains without the job: %v, want ErrLost", err)
	}
}

func errorOf2[A, B any](_ A, _ B, err error) error { return err }
