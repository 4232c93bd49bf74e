package catalogtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
)

var anyHeld = catalog.HeldBounds{Holders: 100, Trees: 100}

func holder(id string) catalog.Holder {
	return catalog.Holder{ID: id, Kind: "node", Name: "host of " + id, Sender: "192.0.2.1/32"}
}

func setHeld(t *testing.T, c *catalog.Catalog, id string, trees ...chunk.ID) (unknown []chunk.ID) {
	t.Helper()
	done, err := c.Holders.SetHeld(t.Context(), holder(id), trees, anyHeld)
	must(t, err)
	if done.Exceeded != nil {
		t.Errorf("a report of %s: %v", id, done.Exceeded)
	}
	return done.Unknown
}

// A report replaces what a holder has. Unknown trees are ignored.
func testHolders(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	one, two, other := TreeOf("a"), TreeOf("b"), TreeOf("other")
	for range 2 { // a report is idempotent
		if unknown := setHeld(t, c, "n1", one, other, one); !slices.Equal(unknown, []chunk.ID{other}) {
			t.Errorf("unknown trees %v, want one", unknown)
		}
	}
	setHeld(t, c, "n2", one, two)
	ofTree := func(tree chunk.ID) (ids string) {
		t.Helper()
		holders, err := c.Holders.Of(ctx, tree)
		must(t, err)
		for _, h := range holders {
			ids += h.ID + " "
		}
		return ids
	}
	if got := ofTree(one) + "/ " + ofTree(two) + "/ " + ofTree(other); got != "n1 n2 / n2 / " {
		t.Errorf("holders of trees: %s", got)
	}
	setHeld(t, c, "n1", two)
	if got := ofTree(one) + "/ " + ofTree(two); got != "n2 / n2 n1 " && got != "n2 / n1 n2 " {
		t.Errorf("holders of trees after another report: %s", got)
	}
	all, err := c.Holders.All(ctx)
	if err != nil || len(all) != 2 || all[0].Seen.IsZero() || all[0].Age < 0 || all[0].Age > time.Hour {
		t.Fatalf("holders %+v, %v", all, err)
	}
	for _, h := range all {
		if want := map[string]int64{"n1": 1, "n2": 2}[h.ID]; h.Trees != want || h.Name != "host of "+h.ID {
			t.Errorf("holder %+v, want %d trees", h, want)
		}
	}
	must(t, c.Holders.ForgetHolder(ctx, "n2"))
	if err := c.Holders.ForgetHolder(ctx, "n2"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("removed a holder twice: %v, want ErrNotFound", err)
	}
	if got := ofTree(one) + "/ " + ofTree(two); got != "/ n1 " {
		t.Errorf("holders of trees after one was removed: %s", got)
	}
	if expired, err := c.Holders.ExpireHolders(ctx, time.Hour, 10); err != nil || len(expired) > 0 {
		t.Errorf("expired before their time: %+v, %v", expired, err)
	}
	if expired, err := c.Holders.ExpireHolders(ctx, -time.Hour, 10); err != nil || len(expired) != 1 ||
		expired[0].ID != "n1" {
		t.Errorf("expired %+v, %v, want n1", expired, err)
	}
	if got := ofTree(two); got != "" {
		t.Errorf("holders after the last one has expired: %s", got)
	}
}

// If a report exceeds a bound, the holder keeps the trees that it had, and the holder
// catalog.Others gets the other reported trees. A known holder can always report as many trees as
// it has.
func testHeldBounds(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	Publish(t, c, "three", "c")
	one, two, three := TreeOf("a"), TreeOf("b"), TreeOf("c")
	report := func(bounds catalog.HeldBounds, id string, trees ...chunk.ID) error {
		t.Helper()
		done, err := c.Holders.SetHeld(ctx, holder(id), trees, bounds)
		must(t, err)
		return done.Exceeded
	}
	holders := func() string {
		t.Helper()
		all, err := c.Holders.All(ctx)
		must(t, err)
		var text []string
		for _, h := range all {
			var trees []string
			for _, tree := range []chunk.ID{one, two, three} {
				of, err := c.Holders.Of(ctx, tree)
				must(t, err)
				if slices.ContainsFunc(of, func(o catalog.Holder) bool { return o.ID == h.ID }) {
					trees = append(trees, map[chunk.ID]string{one: "a", two: "b", three: "c"}[tree])
				}
			}
			if h.Trees != int64(len(trees)) {
				t.Errorf("holder %+v has %v", h, trees)
			}
			text = append(text, fmt.Sprint(h.ID, trees))
		}
		slices.Sort(text)
		return fmt.Sprint(text)
	}
	must(t, report(catalog.HeldBounds{Holders: 1, SenderHolders: 1, Trees: 1}, "n1", one))
	for name, bounds := range map[string]catalog.HeldBounds{
		"holders":             {Holders: 1, Trees: 100},
		"holders of a sender": {Holders: 100, SenderHolders: 1, Trees: 100},
		"trees":               {Holders: 100, Trees: 1},
		"trees of a sender":   {Holders: 100, Trees: 100, SenderTrees: 1},
	} {
		if err := report(bounds, "n2", two); !errors.Is(err, catalog.ErrTooMany) {
			t.Errorf("beyond the bound of %s: %v, want ErrTooMany", name, err)
		}
		if got, want := holders(), "[n1[a] "+catalog.Others+"[b]]"; got != want {
			t.Errorf("beyond the bound of %s: %s, want %s", name, got, want)
		}
		must(t, c.Holders.ForgetHolder(ctx, catalog.Others))
	}
	for range 2 {
		err := report(catalog.HeldBounds{Holders: 100, Trees: 1}, "n1", one, two)
		if !errors.Is(err, catalog.ErrTooMany) {
			t.Errorf("a known holder with one more tree: %v, want ErrTooMany", err)
		}
	}
	if err := report(catalog.HeldBounds{Holders: 1, Trees: 1}, "n3", three); !errors.Is(err, catalog.ErrTooMany) {
		t.Errorf("another holder: %v, want ErrTooMany", err)
	}
	if got, want := holders(), "[n1[a] "+catalog.Others+"[b c]]"; got != want {
		t.Errorf("holders %s, want %s: Others has all that exceeds the bounds", got, want)
	}
	must(t, report(catalog.HeldBounds{}, "n1", two))
	if got, want := holders(), "[n1[b] "+catalog.Others+"[b c]]"; got != want {
		t.Errorf("holders %s, want %s: a report replaces the trees of its holder", got, want)
	}
	must(t, report(catalog.HeldBounds{Holders: 2, Trees: 2}, "n2", three)) // Others does not count
}

// If invented holders reach all bounds, a real holder can still extend its lease, and a new tree
// that it reports is kept, even after the tree's image was removed.
func testInventedHolders(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "b")
	one, two := TreeOf("a"), TreeOf("b")
	bounds := catalog.HeldBounds{Holders: 10, SenderHolders: 5, Trees: 5, SenderTrees: 4}
	report := func(id, sender string, trees ...chunk.ID) {
		t.Helper()
		_, err := c.Holders.SetHeld(ctx, catalog.Holder{ID: id, Kind: "node", Sender: sender}, trees, bounds)
		must(t, err)
	}
	report("real", "192.0.2.1/32", one)
	seen := func() time.Time {
		t.Helper()
		all, err := c.Holders.All(ctx)
		must(t, err)
		return all[slices.IndexFunc(all, func(h catalog.Holder) bool { return h.ID == "real" })].Seen
	}
	before := seen()
	for i := range 20 {
		report(fmt.Sprint("invented", i), fmt.Sprintf("198.51.100.%d/32", i), one)
	}
	time.Sleep(3 * time.Millisecond)
	report("real", "192.0.2.1/32", one, two)
	if !seen().After(before) {
		t.Error("the lease of the real holder was not extended")
	}
	remove(t, c, "one", "two")
	l, _ := collecting(t, c)
	must(t, c.Garbage.NoteUnserved(ctx, l))
	trees, err := c.Garbage.UnservedTrees(ctx, 0)
	if err != nil || len(trees) != 2 {
		t.Errorf("trees without an image: %+v, %v, want two", trees, err)
	}
	for _, tree := range trees {
		if tree.Dead {
			t.Errorf("tree %s is dead although the real holder has it", tree.Tree.Short())
		}
	}
}

// After a time in which the hub did not run, and in a copy of the catalog, no holder expires until
// the length of a lease has passed.
func testExpiryAfterAGap(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	setHeld(t, c, "n1", TreeOf("a"))
	must(t, c.Remove(ctx, kind, "one", ""))
	must(t, c.Holders.NoteServing(ctx))
	foreseen := func() bool {
		t.Helper()
		trees, err := c.Garbage.ForeseeTrees(ctx, long, -time.Hour)
		if err != nil || len(trees) != 1 {
			t.Fatalf("foreseen %+v, %v, want one tree", trees, err)
		}
		return trees[0].Held
	}
	if foreseen() {
		t.Error("without a gap, the holder is not foreseen to expire")
	}
	must(t, c.Disown(ctx))
	for range 2 {
		must(t, c.Holders.NoteServing(ctx))
		if expired, err := c.Holders.ExpireHolders(ctx, -time.Hour, 10); err != nil || len(expired) > 0 || !foreseen() {
			t.Errorf("after a gap, expired %+v, %v, want none", expired, err)
		}
	}
}

// A tree without an image stays for a while after its last holder was removed. Until the removal
// the hub announced the tree, so other nodes may have it.
func testReleasedTrees(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	tree := TreeOf("a")
	setHeld(t, c, "n1", tree)
	must(t, c.Remove(ctx, kind, "one", ""))
	for what, release := range map[string]func(){
		"a report":  func() { setHeld(t, c, "n1") },
		"an expiry": func() { must(t, errorOf(c.Holders.ExpireHolders(ctx, -time.Hour, 10))) },
		"a removal": func() { must(t, c.Holders.ForgetHolder(ctx, "n1")) },
		"no change": nil,
	} {
		setHeld(t, c, "n1", tree)
		before, err := c.Garbage.UnservedTrees(ctx, 0)
		if err != nil || len(before) != 1 || !before[0].Held {
			t.Fatalf("trees without an image: %+v, %v, want one that is held", before, err)
		}
		time.Sleep(3 * time.Millisecond)
		if release == nil {
			setHeld(t, c, "n1", tree)
		} else {
			release()
		}
		after, err := c.Garbage.UnservedTrees(ctx, 0)
		if err != nil || len(after) != 1 || after[0].Since.After(before[0].Since) != (release != nil) {
			t.Errorf("after %s: %+v, %v, before %+v", what, after, err, before)
		}
	}
}

// ForeseeTrees returns the trees that UnservedTrees returns after the holders have expired.
func testForeseenTrees(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	for _, key := range []string{"held", "free", "stays"} {
		Publish(t, c, key, key)
	}
	setHeld(t, c, "n1", TreeOf("held"))
	remove(t, c, "held", "free")
	l, _ := collecting(t, c)
	since := map[chunk.ID]time.Time{}
	all := func(find func(delay time.Duration) ([]catalog.UnservedTree, error)) (text []string) {
		for _, delay := range []time.Duration{long, 0} {
			trees, err := find(delay)
			must(t, err)
			for _, u := range trees {
				since[u.Tree], u.Since = u.Since, time.Time{}
				text = append(text, fmt.Sprintf("after %v: %+v", delay, u))
			}
		}
		slices.Sort(text)
		return text
	}
	now := func(delay time.Duration) ([]catalog.UnservedTree, error) { return c.Garbage.UnservedTrees(ctx, delay) }
	before := all(now)
	for _, age := range []time.Duration{long, -long} { // the holder has not expired, then it has
		time.Sleep(3 * time.Millisecond)
		was := maps.Clone(since)
		foreseen := all(func(delay time.Duration) ([]catalog.UnservedTree, error) {
			return c.Garbage.ForeseeTrees(ctx, delay, age)
		})
		expires := age < 0
		if since[TreeOf("held")].After(was[TreeOf("held")]) != expires || since[TreeOf("free")] != was[TreeOf("free")] {
			t.Errorf("age %v: foreseen without an image since %v, before %v", age, since, was)
		}
		must(t, errorOf(c.Holders.ExpireHolders(ctx, age, 10)))
		must(t, c.Garbage.NoteUnserved(ctx, l))
		after := all(now)
		if len(after) != 4 || !slices.Equal(after, foreseen) || slices.Equal(after, before) == expires {
			t.Errorf("age %v: trees without an image are\n%q, foreseen were\n%q, and before there were\n%q",
				age, after, foreseen, before)
		}
	}
}

// A removed image stays served while its tree is held, though it is not listed.
func testHeldImage(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a", "b")
	Publish(t, c, "two", "a", "b", "c")
	Publish(t, c, "other", "x")
	tree := TreeOf("a/b/c")
	setHeld(t, c, "n1", tree)
	for _, name := range []string{"one", "two", "other"} {
		must(t, c.Remove(ctx, kind, name, ""))
	}
	if images, err := c.Images(ctx, ""); err != nil || len(images) > 0 {
		t.Errorf("images %+v, %v, want none", images, err)
	}
	if _, err := c.Manifest(ctx, "two"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the manifest of a removed image: %v, want ErrNotFound", err)
	}
	chain, err := c.Chain(ctx, "a")
	if err != nil || !chain.Complete || len(chain.Above) != 2 || chain.Above[1].Statement == nil ||
		chain.Above[1].Statement.Tree != tree || chain.Statement != nil || chain.Above[0].Statement != nil {
		t.Errorf("the lowest chain of a held tree: %+v, %v, want the two above, the last with a statement", chain, err)
	}
	if layers, err := c.Layers(ctx, "a/b/c"); err != nil || !slices.Equal(layers, []string{"a", "b", "c"}) {
		t.Errorf("layers of a held chain: %v, %v", layers, err)
	}
	if s, err := c.Statement(ctx, "a/b/c"); err != nil || s.Format != index.Format {
		t.Errorf("statement of a held chain: %+v, %v", s, err)
	}
	if _, err := c.Chain(ctx, "x"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the chain of an image that nobody holds: %v, want ErrNotFound", err)
	}
	if surplus, err := c.SurplusDerived(ctx, 0, 0); err != nil || len(surplus) > 0 {
		t.Errorf("trees to evict: %+v, %v, want none: the image of the held one is gone", surplus, err)
	}
	must(t, c.Starts.Unserved(ctx, time.UnixMilli(1)))
	if due, err := c.Starts.TreeUse(ctx, tree); err != nil || !due.Served || !due.Unserved.IsZero() {
		t.Errorf("the layout of a held tree: %+v, %v, want it served", due, err)
	}
	if due, err := c.Starts.TreeUse(ctx, TreeOf("x")); err != nil || due.Served || due.Unserved.IsZero() {
		t.Errorf("the layout of a tree that nobody holds: %+v, %v, want it not served", due, err)
	}
	must(t, c.Holders.ForgetHolder(ctx, "n1"))
	if _, err := c.Chain(ctx, "a"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("the chain of a tree that is no longer held: %v, want ErrNotFound", err)
	}
}
