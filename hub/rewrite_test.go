package hub_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/rootdir"
	"lighter/wire"
)

// packsOf returns the packs that a tree's locations name, apart from startup packs.
func (h *testHub) packsOf(tree string) map[chunk.ID]bool {
	h.t.Helper()
	m := h.extents(tree)
	locations := fetchLocations(h.t, h.origins(), m.Header)
	packs := map[chunk.ID]bool{}
	if err := locations.Each(func(_ int64, u chunk.Unit) error {
		packs[u.Pack] = true
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	for _, s := range locations.Startups() {
		delete(packs, s.Pack)
	}
	return packs
}

// A pack that has few needed chunks is rewritten as a smaller one. Nodes with older locations can
// read the old pack for a while.
func TestSparsePacksAreRewritten(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("goes:1", image(layer(seeds(1, 40)...)))
	keeps := h.laid("keeps:1", image(layer(3, 4)))
	before := h.packsOf(keeps.Tree)
	size := h.objectBytes()
	h.Collector().Keep = time.Hour
	h.remove("goes:1")
	if done := h.collect(0); done.Rewritten != 1 || done.DeadBytes != 0 {
		t.Errorf("the collection has done %+v, want one rewritten pack", done)
	}
	after := h.packsOf(keeps.Tree)
	for pack := range before {
		if after[pack] {
			t.Errorf("the locations name pack %s, which was rewritten", pack.Short())
		}
		h.expect(fmt.Sprintf("/lighter/1/default/packs/%s/0", pack), 200)
	}
	h.fetchTree(keeps.Chain)
	h.Collector().Keep = 0
	h.collect(0)
	if now := h.objectBytes(); now > size/3 {
		t.Errorf("%d bytes of objects are left of %d, want a third at most", now, size)
	}
	for pack := range before {
		h.expect(fmt.Sprintf("/lighter/1/default/packs/%s/0", pack), 404)
	}
	h.fetchTree(keeps.Chain)
	if problems := h.problems("keeps:1"); problems != "" {
		t.Error(problems)
	}
	// The removed image can be pushed again: its chunks get packs of their own.
	again := h.laid("again:1", image(layer(seeds(1, 40)...)))
	h.fetchTree(again.Chain)
	h.remove("keeps:1")
	h.collect(0)
	h.fetchTree(again.Chain)
}

// checkLocations makes the next collection check all locations, as it does after a repair that has
// moved chunks.
func (h *testHub) checkLocations() {
	h.t.Helper()
	claim := catalog.Claim{Owner: h.Owner(), Keys: []string{objects.PackKey(chunk.Sum([]byte("repaired")))}}
	err := h.Catalog().Claims.Acquire(h.t.Context(), claim, time.Hour)
	if err == nil {
		err = h.Catalog().MoveChunks(h.t.Context(), claim, nil, nil, nil)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// If a repair moves chunks while a layout is made, the next collection checks the layout's
// locations, although it has checked the previous ones.
func TestChunksMoveWhileALayoutIsMade(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	m := h.extents(h.laid("a:1", image(startsTar(10))).Tree)
	before, err := h.Catalog().Starts.Locations(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	claim := catalog.Claim{Owner: h.Owner(), Keys: []string{objects.LocationsKey(before)}} // layouts wait for it
	if err := h.Catalog().Claims.Acquire(t.Context(), claim, time.Hour); err != nil {
		t.Fatal(err)
	}
	read := filesOf(t, m)[3:5]
	if err := h.origins().SendTrace(t.Context(), m.ID(), trace.Trace{Tree: m.ID(), Reads: read}); err != nil {
		t.Fatal(err)
	}
	scratch, err := h.Publisher().TempDir("scratch")
	if err != nil {
		t.Fatal(err)
	}
	staged := filepath.Join(filepath.Dir(scratch), "starts-*", "locations")
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if found, err := filepath.Glob(staged); err != nil || len(found) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no layout is staged within a minute")
		}
	}
	h.checkLocations()
	h.collect(0)
	moved := func() []catalog.MovedLayout {
		t.Helper()
		moved, err := h.Catalog().Garbage.MovedLayouts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return moved
	}
	if left := moved(); len(left) > 0 {
		t.Fatalf("after the collection, the locations of %v are to be checked, want none", left)
	}
	if err := h.Catalog().Claims.Release(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	h.await(m.ID())
	if now := moved(); len(now) != 1 || now[0].Locations == before || now[0].Moved != catalog.AnyPack {
		t.Errorf("after the layout, the locations of %+v are to be checked, want the new ones, for any pack", now)
	}
	h.collect(0)
	if left := moved(); len(left) > 0 {
		t.Errorf("after another collection, the locations of %v are to be checked, want none", left)
	}
}

// Two images with a common chunk are ingested at the same time, so both store it. Until the next
// collection, the locations of one name another unit than the catalog. That is no damage, unless
// the unit is lost.
func TestVerifyOfAChunkThatIsStoredTwice(t *testing.T) {
	t.Parallel()
	h, other := startHub(t), startHub(t)
	both, first := image(layer(1, 2)), image(layer(1))
	tree := other.laid("both:1", both).Tree
	claim := catalog.Claim{Owner: h.Owner(), Keys: []string{objects.IndexKey(idOf(t, tree))}}
	if err := h.Catalog().Claims.Acquire(t.Context(), claim, time.Hour); err != nil { // the image waits for it
		t.Fatal(err)
	}
	h.push("both:1", both)
	staged := filepath.Join(rootdir.Scratch(h.config.Root), "*", "locations")
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if found, err := filepath.Glob(staged); err != nil || len(found) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the image is not staged within a minute")
		}
	}
	h.laid("first:1", first)
	if err := h.Catalog().Claims.Release(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	h.readyAndLaid("both:1")
	layout, err := h.Catalog().Starts.Layout(t.Context(), idOf(t, tree))
	if err != nil || !layout.Moved || len(h.packsOf(tree)) != 1 {
		t.Fatalf("the layout is %+v, %v, with packs %v; want one that is marked as moved, and a pack of its own",
			layout, err, h.packsOf(tree))
	}
	h.wantClean("while the chunk is stored twice", "both:1", "first:1")
	for pack := range h.packsOf(tree) {
		if err := os.Remove(filepath.Join(objectsDir(h.config), objects.PackKey(pack))); err != nil {
			t.Fatal(err)
		}
	}
	h = h.restart() // nothing is cached
	if problems := h.problems("both:1"); !strings.Contains(problems, "locations: 1 of 2 differ") {
		t.Errorf("without the pack, the problems are %q, want that the locations name it", problems)
	}
}

// While the locations of a tree are lost, a collection frees no pack, and its result counts the
// tree.
func TestLostLocationsKeepPacks(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("goes:1", image(layer(1, 2)))
	stuck := h.laid("stuck:1", image(layer(3, 4)))
	h.remove("goes:1")
	h.checkLocations()
	id, _ := chunk.ParseID(stuck.Tree)
	locations, err := h.Catalog().Starts.Locations(t.Context(), id)
	if err == nil {
		err = os.Remove(filepath.Join(objectsDir(h.config), objects.LocationsKey(locations)))
	}
	if err != nil {
		t.Fatal(err)
	}
	h = h.restart() // nothing is cached
	h.Collector().Delay = 0
	j, err := h.Collector().Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done, err := h.Collector().Await(t.Context(), j.N, func(wire.Progress) error { return nil })
	if err != nil || done.Packs != 0 || done.Unrenewed != 1 {
		t.Errorf("the collection has done %+v (%v), want one tree with old locations and no pack freed", done, err)
	}
	if check := h.fsck(wire.Fsck{Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.idle()
	if done := h.collect(0); done.Packs != 1 || done.Unrenewed != 0 {
		t.Errorf("after the repair, the collection has done %+v, want one pack freed", done)
	}
	h.wantClean("after the collection", "stuck:1")
}

// If locations cannot be renewed, the collection keeps only the packs that they name, and its
// result counts the tree.
func TestStuckLocationsKeepOnlyTheirPacks(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("goes:1", image(layer(seeds(1, 9)...)))
	stuck := h.laid("stuck:1", image(layer(10, 11)))
	h.remove("goes:1")
	h.checkLocations()
	damage(t, filepath.Join(objectsDir(h.config), "indexes", stuck.Tree+".zst"))
	h = h.restart() // nothing is cached
	if done := h.collect(0); done.Packs != 1 || done.Unrenewed != 1 {
		t.Errorf("the collection has done %+v, want one pack freed and one tree with old locations", done)
	}
	if check := h.fsck(wire.Fsck{Deep: true, Repair: true}); check.Left() != 0 {
		t.Errorf("not repaired: %s", findings(check))
	}
	h.idle()
	if done := h.collect(0); done.Unrenewed != 0 {
		t.Errorf("after the repair, the collection has done %+v, want all locations renewed", done)
	}
	h.wantClean("after the collection", "stuck:1")
}

// After half of an image's versions are removed and collected, the hub is about as large as one
// that never had them.
func TestDeadBytesComeBack(t *testing.T) {
	t.Parallel()
	const versions, packages, files, changed = 12, 24, 8, 12 // files of a package, packages of a version
	random := rand.New(rand.NewPCG(1, 2))
	now, next := seeds(1, packages*files), uint64(packages*files)
	var all [][]byte
	for range versions {
		all = append(all, layer(now...))
		for _, p := range random.Perm(packages)[:changed] {
			for i := range files {
				next++
				now[p*files+i] = next
			}
		}
	}
	h, fresh := startHub(t), startHub(t)
	for i, l := range all {
		h.laid(fmt.Sprint("a:", i), image(l))
		if i%2 == 1 {
			fresh.laid(fmt.Sprint("a:", i), image(l))
		}
	}
	before := h.objectBytes()
	for i := range all {
		if i%2 == 0 {
			h.remove(fmt.Sprint("a:", i))
		}
	}
	h.Collector().Keep = 0
	h.collect(0)
	after, ideal := h.objectBytes(), fresh.objectBytes()
	freed := float64(before-after) / float64(before-ideal)
	t.Logf("%d bytes before, %d after, %d in a hub that never had them: %.3f of the dead bytes are freed",
		before, after, ideal, freed)
	if freed < 0.95 {
		t.Errorf("%.3f of the dead bytes are freed, want 0.95 at least", freed)
	}
	for i := range all {
		if i%2 == 1 {
			h.fetchTree(h.settled(fmt.Sprint("a:", i))[0].Chain)
		}
	}
}
