package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/holders"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// collect runs a collection and returns its result. delay is how long trees of removed images stay.
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

// After an image is removed and collected, the hub stores the same as before it had the image.
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
		t.Errorf("with both images, the collection leaves\n%v\nwant\n%v", h.holdings(), both)
	}
	h.remove("goes:1")
	if h.collect(time.Hour); fmt.Sprint(h.holdings()) != fmt.Sprint(both) {
		t.Errorf("just after the removal, the collection leaves\n%v\nwant\n%v", h.holdings(), both)
	}
	plan, err := h.Collector().Plan(t.Context())
	if err != nil || plan.Trees != 0 || len(plan.Unserved) != 1 || plan.Unserved[0].Tree != goes.Tree ||
		plan.Unserved[0].Name != "goes:1" ||
		plan.Unserved[0].Goes || !strings.Contains(plan.Unserved[0].Why, "less than 1h0m0s ago") {
		t.Errorf("plan %+v, %v, want goes:1 to stay, as it was removed less than an hour ago", plan, err)
	}
	h.Collector().Delay = 0
	if plan, err = h.Collector().Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := h.collect(0)
	if fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nwant\n%v", h.holdings(), before)
	}
	if plan.Trees != 1 || plan.Layers != 1 || plan.Packs != 1 || plan.PackBytes < 40_000 ||
		plan.Bytes <= plan.PackBytes || !plan.DryRun ||
		[6]int64{plan.Trees, plan.Chains, plan.Layers, plan.Packs, plan.PackBytes, plan.Bytes} !=
			[6]int64{done.Trees, done.Chains, done.Layers, done.Packs, done.PackBytes, done.Bytes} {
		t.Errorf("the dry run says %+v, the collection has done %+v, want the same", plan, done)
	}
	h.fetchTree(keeps.Chain)
	for path, want := range map[string]int{"indexes/" + goes.Tree: 404, "locations/" + goes.Tree: 404,
		"chains/" + goes.Chain: 404, "indexes/" + keeps.Tree: 200} {
		h.expect("/lighter/1/default/"+path, want)
	}

	// The same image can be pushed again.
	again := h.laid("goes:2", image(layer(1, 2), layer(4, 5)))
	if again.Tree != goes.Tree {
		t.Errorf("the tree of the image that was pushed again is %s, want %s", again.Tree, goes.Tree)
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

// A tree stays as long as an image has it, also under another name. The layers of a chain stay as
// long as a longer chain has them.
func TestCollectionKeepsWhatAnotherImageHas(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	same := image(layer(1), layer(2))
	h.laid("a:1", same)
	h.laid("b:1", same)
	h.remove("a:1")
	before := h.holdings()
	if h.collect(0); fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nwant\n%v", h.holdings(), before)
	}
	above := h.laid("above:1", image(layer(1), layer(2), layer(3)))
	h.remove("b:1") // its chain is below the other image
	before = h.holdings()
	if h.collect(0); fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("the collection leaves\n%v\nwant\n%v", h.holdings(), before)
	}
	h.fetchTree(above.Chain)
}

// seeds returns the numbers from first to last.
func seeds(first, last uint64) (all []uint64) {
	for ; first <= last; first++ {
		all = append(all, first)
	}
	return all
}

// A tree that a node holds stays when its image is removed, until no node holds it.
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
		t.Errorf("the collection leaves\n%v\nwant\n%v", h.holdings(), before)
	}
	if err := readTree(t, h.origins(), tree, true); err != nil {
		t.Error(err)
	}
	if err := h.Catalog().Holders.ForgetHolder(t.Context(), node.ID); err != nil {
		t.Fatal(err)
	}
	h.collect(0)
	if left := h.holdings(); len(left.objects) > 0 || left.inventory != (catalog.Inventory{}) {
		t.Errorf("the collection leaves %+v, want nothing", left)
	}
}

// A collection forgets holders that have stopped reporting, and frees their trees. It also deletes
// blobs of the registry that nothing needs.
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
		t.Errorf("the collection has done %+v, want the tree of a holder to stay", done)
	}
	h.Collector().Blobs.Delay = 0
	// The node has reported long ago.
	h.Collector().Holders = holders.New(h.Catalog().Holders, -wire.HeldLease-time.Hour, h.Log())
	time.Sleep(2 * time.Millisecond)
	plan, err := h.client.PlanCollection(t.Context())
	if err != nil || plan.Collection.Blobs == 0 || plan.Collection.BlobBytes < 20_000 {
		t.Errorf("plan %+v, %v, want the image's blobs in it", plan.Collection, err)
	}
	if done := h.collect(0); done.Trees != 1 || len(h.holders("")) != 0 {
		t.Errorf("the collection has done %+v, want the holder forgotten and its tree freed", done)
	} else if p := plan.Collection; done.Blobs != p.Blobs || done.BlobBytes != p.BlobBytes ||
		[5]int64{p.Trees, p.Chains, p.Layers, p.Packs, p.Bytes} !=
			[5]int64{done.Trees, done.Chains, done.Layers, done.Packs, done.Bytes} {
		t.Errorf("the collection has done %+v, want its plan, %+v", done, plan.Collection)
	}
	if left := h.registryFiles("blobs/sha256"); len(left) > 0 {
		t.Errorf("the registry has the blobs %q, want none", left)
	}
}

// A startup pack of several trees is deleted with the last of these trees, also if one collection
// removes all of them.
func TestCollectionFreesSharedStartupPacks(t *testing.T) {
	t.Parallel()
	h := startsHub(t)
	a := h.pushReady("a:1", image(startsTar(10)))
	b := h.pushReady("b:1", image(startsTar(10), tarball.Of(tarball.File("e", "of another tree"))))
	h.traced(h.extents(a.Tree), 2, 1)
	h.traced(h.extents(b.Tree), 2, 1)
	first, _ := h.startups(h.extents(a.Tree))
	second, _ := h.startups(h.extents(b.Tree))
	if len(first) != 1 || len(second) != 1 || first[0].Pack != second[0].Pack {
		t.Fatalf("startup packs %+v and %+v, want the same one", first, second)
	}
	h.idle()
	h.remove("a:1")
	h.remove("b:1")
	h.collect(0)
	if err := h.Starts().Sweep(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if left := h.holdings(); len(left.objects) > 0 || left.inventory != (catalog.Inventory{}) {
		t.Errorf("the collection leaves %+v, want nothing", left)
	}
}
