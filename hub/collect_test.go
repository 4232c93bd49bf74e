package hub_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/holders"
	"lighter/hub/ingest"
	"lighter/hub/objects"
	"lighter/hub/report"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// collect runs the collection and returns what it has done. delay is how long trees stay.
func (h *testHub) collect(delay time.Duration) *wire.Collection {
	h.t.Helper()
	h.Collector().Delay = delay
	j, err := h.Collector().Start(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	done, err := h.Collector().Await(h.t.Context(), j.N, func(wire.Progress) error { return nil })
	if err != nil {
		h.t.Fatal(err)
	}
	h.consistent()
	return done
}

// consistent checks that the bucket has the objects that the catalog names, and no others.
func (h *testHub) consistent() {
	h.t.Helper()
	ctx, c := h.t.Context(), h.Catalog()
	inventory, err := c.Inventory(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	startup, err := c.Starts.StartHoldings(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	rewritten, err := c.Garbage.RewrittenPacks(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	want := map[string]int64{
		"packs":   inventory.Packs + startup.Packs + int64(len(rewritten)),
		"indexes": inventory.Trees, "locations": inventory.Trees, "layers": inventory.Layers,
	}
	got := map[string]int64{"packs": 0, "indexes": 0, "locations": 0, "layers": 0}
	for _, key := range files(h.t, objectsDir(h.config)) {
		kind, name, _ := strings.Cut(key, "/")
		got[kind]++
		id, err := chunk.ParseID(strings.TrimSuffix(name, ".zst"))
		if err != nil {
			h.t.Fatal(err)
		}
		known := false
		switch kind {
		case "packs":
			known, err = c.HasPack(ctx, id)
		case "indexes":
			known, err = c.HasTree(ctx, id)
		case "locations":
			known, err = c.Starts.HasLocations(ctx, id)
		case "layers":
			known, _, err = c.HasLayer(ctx, "sha256:"+id.String(), "")
		}
		if err != nil || !known {
			h.t.Errorf("the bucket has %s, and the catalog does not, %v", key, err)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.t.Errorf("the bucket has %v objects, the catalog %v", got, want)
	}
}

func (h *testHub) remove(name string) {
	h.t.Helper()
	if err := h.client.Remove(h.t.Context(), name); err != nil {
		h.t.Fatal(err)
	}
}

// laid pushes an image and waits until it is ready and its layout is made.
func (h *testHub) laid(name string, i fakeImage) wire.Image {
	h.t.Helper()
	h.push(name, i)
	return h.readyAndLaid(name)
}

// readyAndLaid waits until a pushed image is ready and its layout is made.
func (h *testHub) readyAndLaid(name string) wire.Image {
	h.t.Helper()
	got := h.ready(name)
	id, err := chunk.ParseID(got.Tree)
	if err != nil {
		h.t.Fatal(err)
	}
	h.await(id)
	return got
}

// layer returns a layer with files of 20,000 bytes each, one of each seed.
func layer(seeds ...uint64) []byte {
	var entries []tarball.Item
	for _, seed := range seeds {
		entries = append(entries, tarball.File(fmt.Sprint("file-", seed), noise(seed, 20_000)))
	}
	return tarball.Of(entries...)
}

// After the collection of a removed image, the hub has what one has that never had the image.
func TestCollectionFreesARemovedImage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	keeps := h.laid("keeps:1", image(layer(1, 2), layer(3)))
	before := h.holdings()
	goes := h.laid("goes:1", image(layer(1, 2), layer(4, 5)))
	lower := digest.FromBytes(layer(1, 2)).String()
	if _, err := h.client.Chain(t.Context(), lower); err != nil {
		t.Fatal(err)
	}
	both := h.holdings()
	if h.collect(0); fmt.Sprint(h.holdings()) != fmt.Sprint(both) {
		t.Errorf("with both images, the collection leaves\n%v\nof\n%v", h.holdings(), both)
	}
	h.remove("goes:1")
	if h.collect(time.Hour); fmt.Sprint(h.holdings()) != fmt.Sprint(both) {
		t.Errorf("just after the removal, the collection leaves\n%v\nof\n%v", h.holdings(), both)
	}
	plan, err := h.Collector().Plan(t.Context())
	if err != nil || plan.Trees != 0 || len(plan.Unserved) != 1 || plan.Unserved[0].Tree != goes.Tree ||
		plan.Unserved[0].Goes || !strings.Contains(plan.Unserved[0].Why, "less than 1h0m0s ago") {
		t.Errorf("plan %+v, %v", plan, err)
	}
	h.Collector().Delay = 0
	if plan, err = h.Collector().Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := h.collect(0)
	if fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nwant\n%v", h.holdings(), before)
	}
	if plan.Trees != 1 || plan.Layers != 1 || plan.Packs != 1 || plan.Bytes < 40_000 || !plan.DryRun ||
		[5]int64{plan.Trees, plan.Chains, plan.Layers, plan.Packs, plan.Bytes} !=
			[5]int64{done.Trees, done.Chains, done.Layers, done.Packs, done.Bytes} {
		t.Errorf("the dry run says %+v, the collection has done %+v", plan, done)
	}
	h.fetchTree(keeps.Chain)
	for path, want := range map[string]int{"indexes/" + goes.Tree: 404, "locations/" + goes.Tree: 404,
		"chains/" + goes.Chain: 404, "indexes/" + keeps.Tree: 200} {
		h.expect("/lighter/1/default/"+path, want)
	}

	// The same image can be pushed again.
	again := h.laid("goes:2", image(layer(1, 2), layer(4, 5)))
	if again.Tree != goes.Tree {
		t.Errorf("the tree is %s now, and was %s", again.Tree, goes.Tree)
	}
	h.fetchTree(again.Chain)
	h.consistent()
	if problems := h.problems("goes:2"); problems != "" {
		t.Error(problems)
	}
	sizes, err := h.client.Images(t.Context(), "goes:2")
	if err != nil || len(sizes) != 1 || sizes[0].Unique != 40_000 {
		t.Errorf("sizes after the collection: %+v, %v, want 40,000 unique bytes", sizes, err)
	}
}

// A tree stays as long as any image has it, under whatever name and as part of a longer chain.
func TestCollectionKeepsWhatAnotherImageHas(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	same := image(layer(1), layer(2))
	h.laid("a:1", same)
	h.laid("b:1", same)
	h.remove("a:1")
	before := h.holdings()
	if h.collect(0); fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nof\n%v", h.holdings(), before)
	}
	above := h.laid("above:1", image(layer(1), layer(2), layer(3)))
	h.remove("b:1") // its chain is below the other image
	before = h.holdings()
	if h.collect(0); fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nof\n%v", h.holdings(), before)
	}
	h.fetchTree(above.Chain)
}

// A collection that has removed chunks and layers while an image is ingested, which needs them,
// makes the ingestion begin again.
func TestCollectionDuringIngestion(t *testing.T) {
	t.Parallel()
	for name, i := range map[string]fakeImage{
		"the same layer":             image(layer(1, 2)),
		"the same chunks":            image(layer(2, 1)),
		"another layer on the layer": image(layer(1, 2), layer(3)),
		"the layer on another layer": image(layer(3), layer(1, 2)),
		"chunks that the tree hides": image(layer(2), tarball.Of(tarball.Whiteout("file-2"))),
		"the same layer, other bytes": {layers: []fakeLayer{{tar: layer(1, 2), blob: layer(1, 2),
			mediaType: v1.MediaTypeImageLayer}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.laid("keeps:1", image(layer(9)))
			h.laid("goes:1", image(layer(1, 2)))
			h.remove("goes:1")
			prepared := h.prepare("new:1", i)
			if done := h.collect(0); done.Trees != 1 || done.Layers != 1 || done.Packs != 1 {
				t.Fatalf("the collection has done %+v", done)
			}
			if err := prepared(); err == nil || !strings.Contains(err.Error(), catalog.ErrCollected.Error()) {
				t.Errorf("error %v, want one that says that collection has removed something", err)
			}
			h.consistent()
		})
	}
}

// prepare ingests an image up to its publication, which the returned function is.
func (h *testHub) prepare(name string, i fakeImage) (publish func() error) {
	h.t.Helper()
	ctx, c := h.t.Context(), h.Catalog()
	repository, _, _ := strings.Cut(name, ":")
	d := h.push(repository, i).String()
	const kind = "test" // the hub does not run it
	job := catalog.Job{Kind: kind, Key: name, Root: d}
	images, err := c.Name(ctx, name, []catalog.Image{{Name: name, Root: d, Digest: d, Platform: "linux/amd64",
		State: wire.StateQueued}}, job)
	if err != nil {
		h.t.Fatal(err)
	}
	if job, err = c.Jobs.Claim(ctx, h.Owner(), []catalog.Slot{{Kind: kind}}, time.Hour); err != nil {
		h.t.Fatal(err)
	}
	if err := c.Begin(ctx, job.Lease(), images[0].N); err != nil {
		h.t.Fatal(err)
	}
	ingester := ingest.New(c, h.Publisher(), encoder.NewPool(1), h.Trees(), h.Log())
	source := h.Registry().Repository(repository)
	prepared, err := ingester.Prepare(ctx, images[0], source, job.Lease(), &report.Progress{})
	if err != nil {
		h.t.Fatal(err)
	}
	return func() error {
		defer prepared.Close()
		return prepared.Publish(ctx)
	}
}

// An image that is published while a collection runs keeps all that it needs, also what the
// collection was about to remove.
func TestIngestionDuringCollection(t *testing.T) {
	t.Parallel()
	for step, i := range map[string]fakeImage{
		"before trees":  image(layer(1, 2)),
		"before layers": image(layer(2, 1), layer(1, 2)),
		"before packs":  image(layer(2, 1)),
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.laid("keeps:1", image(layer(9)))
			h.laid("goes:1", image(layer(1, 2)))
			h.remove("goes:1")
			prepared := h.prepare("new:1", i)
			published := false
			h.Collector().Step = func(name string) {
				if name == step && !published {
					published = true
					if err := prepared(); err != nil {
						t.Error(err)
					}
				}
			}
			h.collect(0)
			if !published {
				t.Fatal("the collection has not come to that step")
			}
			h.collect(0)
			h.fetchTree(h.settled("new:1")[0].Chain)
		})
	}
}

// seeds returns the numbers from first to last.
func seeds(first, last uint64) (all []uint64) {
	for ; first <= last; first++ {
		all = append(all, first)
	}
	return all
}

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

// A pack of which little is needed is replaced by a smaller one. Nodes with older locations go on
// to read the old one for a while.
func TestSparsePacksAreRewritten(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.laid("goes:1", image(layer(seeds(1, 40)...)))
	keeps := h.laid("keeps:1", image(layer(3, 4)))
	before := h.packsOf(keeps.Tree)
	size := h.packBytes()
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
	if now := h.packBytes(); now > size/3 {
		t.Errorf("packs of %d bytes are left of %d", now, size)
	}
	for pack := range before {
		h.expect(fmt.Sprintf("/lighter/1/default/packs/%s/0", pack), 404)
	}
	h.fetchTree(keeps.Chain)
	if problems := h.problems("keeps:1"); problems != "" {
		t.Error(problems)
	}
	// What was removed comes back in packs of its own.
	again := h.laid("again:1", image(layer(seeds(1, 40)...)))
	h.fetchTree(again.Chain)
	h.remove("keeps:1")
	h.collect(0)
	h.fetchTree(again.Chain)
}

// checkLocations makes the next collection check all locations, as a repair does that has moved
// chunks.
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

// While locations are lost, no pack is freed, and the result says so.
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

// Locations that cannot be renewed keep no packs but those that they name. The result says so.
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
		t.Errorf("after the repair, the collection has done %+v", done)
	}
	h.wantClean("after the collection", "stuck:1")
}

// packBytes returns the bytes of all objects.
func (h *testHub) packBytes() (bytes int64) {
	h.t.Helper()
	for _, key := range files(h.t, objectsDir(h.config)) {
		info, err := os.Stat(filepath.Join(objectsDir(h.config), key))
		if err != nil {
			h.t.Fatal(err)
		}
		bytes += info.Size()
	}
	return bytes
}

// Of two images that are ingested at the same time and have chunks in common, the second one stores
// these once more. The collection frees them.
func TestChunksThatWereStoredTwiceAreFreed(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	first, second := h.prepare("a:1", image(layer(1, 2, 3))), h.prepare("b:1", image(layer(3, 2, 1)))
	for _, publish := range []func() error{first, second} {
		if err := publish(); err != nil {
			t.Fatal(err)
		}
	}
	a, b := h.settled("a:1")[0], h.settled("b:1")[0]
	for _, i := range []wire.Image{a, b} {
		id, _ := chunk.ParseID(i.Tree)
		h.await(id)
	}
	if n := h.holdings().inventory.Packs; n != 2 {
		t.Fatalf("%d packs, want two with the same chunks", n)
	}
	if done := h.collect(0); done.Packs != 1 {
		t.Errorf("the collection has done %+v, want one pack freed", done)
	}
	for _, i := range []wire.Image{a, b} {
		h.fetchTree(i.Chain)
	}
}

// What a node holds stays when its image is removed, until the node holds it no longer.
func TestCollectionKeepsWhatNodesHold(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	image := h.laid("a:1", image(layer(1, 2), layer(3)))
	tree, _ := chunk.ParseID(image.Tree)
	node := catalog.Holder{ID: "node-1", Kind: "node", Name: "node-1"}
	bounds := catalog.HeldBounds{Holders: 10, Trees: 10}
	if _, err := h.Catalog().Holders.SetHeld(t.Context(), node, []chunk.ID{tree}, bounds); err != nil {
		t.Fatal(err)
	}
	h.remove("a:1")
	before := h.holdings()
	if h.collect(0); fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nof\n%v", h.holdings(), before)
	}
	if err := readTree(t, h.origins(), tree, true); err != nil {
		t.Error(err)
	}
	if err := h.Catalog().Holders.ForgetHolder(t.Context(), node.ID); err != nil {
		t.Fatal(err)
	}
	h.collect(0)
	if left := h.holdings(); len(left.objects) > 0 || left.inventory != (catalog.Inventory{}) {
		t.Errorf("the collection leaves %+v", left)
	}
}

// After the removal of half of an image's versions, the hub is about as large as one that never had
// them.
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
	before := h.packBytes()
	for i := range all {
		if i%2 == 0 {
			h.remove(fmt.Sprint("a:", i))
		}
	}
	h.Collector().Keep = 0
	h.collect(0)
	after, ideal := h.packBytes(), fresh.packBytes()
	back := float64(before-after) / float64(before-ideal)
	t.Logf("%d bytes before, %d after, %d in a hub that never had them: %.3f of the dead bytes are back",
		before, after, ideal, back)
	if back < 0.95 {
		t.Errorf("%.3f of the dead bytes are back, want 0.95", back)
	}
	for i := range all {
		if i%2 == 1 {
			h.fetchTree(h.settled(fmt.Sprint("a:", i))[0].Chain)
		}
	}
}

// A collection forgets holders that report no more, and frees what they had. It also deletes what
// the registry does not need.
func TestCollectionForgetsHoldersAndBlobs(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	got := h.laid("a:1", image(layer(1)))
	tree, err := chunk.ParseID(got.Tree)
	if err != nil {
		t.Fatal(err)
	}
	h.report(strings.Repeat("7", 32), tree)
	h.remove("a:1")
	if done := h.collect(0); done.Trees != 0 || len(h.holders("")) != 1 {
		t.Errorf("the collection has removed what a node has: %+v", done)
	}
	h.Collector().Blobs.Delay = 0
	// The node has reported long ago.
	h.Collector().Holders = holders.New(h.Catalog().Holders, -wire.HeldLease-time.Hour, h.Log())
	time.Sleep(2 * time.Millisecond)
	plan, err := h.client.PlanCollection(t.Context())
	if err != nil || plan.Collection.Blobs == 0 || plan.Collection.BlobBytes < 20_000 {
		t.Errorf("plan %+v, %v", plan.Collection, err)
	}
	if done := h.collect(0); done.Trees != 1 || len(h.holders("")) != 0 {
		t.Errorf("the collection has not removed what a forgotten node had: %+v", done)
	} else if p := plan.Collection; done.Blobs != p.Blobs || done.BlobBytes != p.BlobBytes ||
		[5]int64{p.Trees, p.Chains, p.Layers, p.Packs, p.Bytes} !=
			[5]int64{done.Trees, done.Chains, done.Layers, done.Packs, done.Bytes} {
		t.Errorf("the collection has deleted %+v, its plan was %+v", done, plan.Collection)
	}
	if left := h.registryFiles("blobs/sha256"); len(left) > 0 {
		t.Errorf("left in the registry: %q", left)
	}
}
