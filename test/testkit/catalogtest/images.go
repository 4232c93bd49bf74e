package catalogtest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/wire"
)

func testStates(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	image, j := begin(t, c, "one")
	must(t, c.End(ctx, j.Lease(), image.N, wire.StateFailed, "reason"))
	if err := c.End(ctx, j.Lease(), image.N, wire.StateStored, ""); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("ended a failed image: %v, want ErrNotFound", err)
	}
	begin(t, c, "two")
	two, err := c.Jobs.Open(ctx, kind, "two")
	must(t, err)
	end(t, c, two, catalog.Outcome{State: wire.JobFailed, Error: "other reason"}, wire.JobFailed)
	begin(t, c, "three")
	for name, reason := range map[string]string{"one": "reason", "two": "image two: other reason"} {
		if images, err := c.Images(ctx, name); err != nil || images[0].State != wire.StateFailed ||
			images[0].Error != reason {
			t.Errorf("image %s: %+v, %v, want it failed with %q", name, images, err, reason)
		}
	}
	counts, err := c.States(ctx)
	if want := map[string]int64{wire.StateActive: 1, wire.StateFailed: 2}; err != nil ||
		!reflect.DeepEqual(counts, want) {
		t.Errorf("states: %v, %v, want %v", counts, err, want)
	}
	// A failed image is queued again.
	end(t, c, j, catalog.Outcome{State: wire.JobFailed}, wire.JobFailed)
	if now, err := c.Name(ctx, "one", []catalog.Image{queued("one")}, jobOf("one")); err != nil ||
		now[0].State != wire.StateQueued {
		t.Errorf("a failed image that was named again: %+v, %v, want it queued", now, err)
	}
	claim(t, c, "worker", "one")
	// Images without a job are found.
	if pending, err := c.PendingNames(ctx, kind); err != nil || len(pending) != 0 {
		t.Errorf("names without a job: %v, %v", pending, err)
	}
	if pending, err := c.PendingNames(ctx, "other"); err != nil || len(pending) != 2 || pending["one"] != "one" {
		t.Errorf("names without a job of another kind: %v, %v", pending, err)
	}
}

func testNames(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "a:1", "x")
	expect := func(digest string) {
		t.Helper()
		_, _, err := c.Expect(ctx, []catalog.Image{queued(digest)}, "example.org/a", "superseded", jobOf("a:1"))
		must(t, err)
	}
	// Expected images do not replace the present ones.
	expect("new")
	if got, want := states(t, c, "a:1"), "a:1 a:1 ready;a:1 new queued;"; got != want {
		t.Errorf("while an image is expected: %s, want %s", got, want)
	}
	// Only the images of the last root are expected.
	expect("newer")
	if got, want := states(t, c, "a:1"), "a:1 a:1 ready;a:1 new failed;a:1 newer queued;"; got != want {
		t.Errorf("while another image is expected: %s, want %s", got, want)
	}
	now, err := c.Name(ctx, "a:1", []catalog.Image{queued("new"), queued("third")}, jobOf("a:1"))
	if err != nil || len(now) != 2 || now[0].Digest != "new" ||
		states(t, c, "a:1") != "a:1 new queued;a:1 third queued;" {
		t.Errorf("Name: now %+v, %v", now, err)
	}
	must(t, c.Supersede(ctx, jobOf("a:1"), "third", "superseded"))
	if got, want := states(t, c, "a:1"), "a:1 new failed;a:1 third queued;"; got != want {
		t.Errorf("superseded: %s, want %s", got, want)
	}
	j := claim(t, c, "worker", "a:1")
	must(t, c.NameAs(ctx, j.Lease(), "a:1", []catalog.Image{{Root: "third", Digest: "third", State: wire.StateStored},
		{Root: "third", Digest: "new", State: wire.StateStored}}))
	if got, want := states(t, c, "a:1"), "a:1 new failed;a:1 third queued;"; got != want {
		t.Errorf("named by a job: %s, want %s", got, want)
	}
	for digest, want := range map[string][]string{"new": {"a:1"}, "third": {"a:1"}, "newer": nil} {
		names, err := c.NamesIn(ctx, "a", digest)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("names of %s: %q, %v, want %q", digest, names, err, want)
		}
	}
	if names, err := c.NamesIn(ctx, "b", "new"); err != nil || len(names) != 0 {
		t.Errorf("names in another repository: %q, %v", names, err)
	}
	images, err := c.Images(ctx, "a:1")
	must(t, err)
	numbered, err := c.Numbered(ctx, []int64{images[0].N, images[0].N, 1 << 40})
	if err != nil || len(numbered) != 1 || numbered[0].N != images[0].N {
		t.Errorf("images by number: %+v, %v", numbered, err)
	}
	// When no image is left to ingest, the job is cancelled.
	must(t, c.Remove(ctx, kind, "a:1", "new"))
	if request, err := c.Jobs.Extend(ctx, j.Lease(), long, nil); err != nil || request != "" {
		t.Errorf("request %q, %v", request, err)
	}
	must(t, c.Remove(ctx, kind, "a:1", ""))
	if request, err := c.Jobs.Extend(ctx, j.Lease(), long, nil); err != nil || request != wire.JobCancel {
		t.Errorf("request %q, %v, want cancel", request, err)
	}
	if got := states(t, c, ""); got != "" {
		t.Errorf("images after the removal: %s", got)
	}
}

// Publish and End of a removed image change nothing, even if the name was added again.
func testRemovedImage(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	image, j := begin(t, c, "a")
	p := publication(t, c, image, "x")
	p.Lease = j.Lease()
	must(t, c.Remove(ctx, kind, "a", ""))
	again, err := c.Name(ctx, "a", []catalog.Image{queued("a")}, jobOf("a"))
	if err != nil || again[0].N == image.N {
		t.Fatalf("a new image has the number of a removed one: %+v, %v", again, err)
	}
	for what, err := range map[string]error{"Publish": c.Publish(ctx, p), "Begin": c.Begin(ctx, j.Lease(), image.N),
		"End": c.End(ctx, j.Lease(), image.N, wire.StateFailed, "late")} {
		if !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("%s of a removed image: %v, want ErrNotFound", what, err)
		}
	}
	if known, err := c.HasPack(ctx, p.Packs[0].ID); known || err != nil {
		t.Errorf("its pack is known: %v, %v", known, err)
	}
	if got := states(t, c, "a"); got != "a a queued;" {
		t.Errorf("the new image: %s, want it queued", got)
	}
}

// Publications of the same layers and chunks at the same time do not fail.
func testCommonLayers(t *testing.T, c *catalog.Catalog) {
	one, oneJob := begin(t, c, "one")
	two, twoJob := begin(t, c, "two")
	first, second := publication(t, c, one, "a", "b"), publication(t, c, two, "b", "c")
	first.Lease, second.Lease = oneJob.Lease(), twoJob.Lease()
	second.Packs[0].ID = packOf("one") // a pack of the same units has the same ID
	must(t, c.Publish(t.Context(), first))
	must(t, c.Publish(t.Context(), second))
	ids := []chunk.ID{chunk.Sum([]byte("a")), chunk.Sum([]byte("b")), chunk.Sum([]byte("c"))}
	units, err := c.Units(t.Context(), ids)
	if err != nil || len(units) != 3 || units[ids[1]] != (chunk.Unit{Pack: packOf("one"), N: 1}) ||
		units[ids[2]] != (chunk.Unit{Pack: packOf("one"), N: 1}) {
		t.Errorf("units %v, %v", units, err)
	}
	if got, err := c.Inventory(t.Context()); err != nil || got.Layers != 3 || got.Chunks != 3 || got.Packs != 1 {
		t.Errorf("inventory %+v, %v", got, err)
	}
}

func testChains(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "one", "a")
	Publish(t, c, "two", "a", "b")
	Publish(t, c, "three", "a", "b", "c")
	Publish(t, c, "other", "a", "x", "y")
	got, err := c.Chain(ctx, "a")
	if err != nil || !got.Complete || got.Statement == nil || got.Parent != "" || got.DiffID != "a" {
		t.Fatalf("chain a: %+v, %v", got, err)
	}
	var above []string
	for _, l := range got.Above {
		above = append(above, fmt.Sprintf("%s on %s: %v", l.Chain, l.Parent, l.Statement != nil))
	}
	slices.Sort(above[:2]) // within a level the order is free
	slices.Sort(above[2:])
	want := []string{"a/b on a: true", "a/x on a: false", "a/b/c on a/b: true", "a/x/y on a/x: true"}
	if !slices.Equal(above, want) {
		t.Errorf("above a: %q, want %q", above, want)
	}
	if layers, err := c.Layers(ctx, "a/b/c"); err != nil || !slices.Equal(layers, []string{"a", "b", "c"}) {
		t.Errorf("layers of a/b/c: %q, %v", layers, err)
	}
	// Chains without an image are unknown.
	must(t, c.Remove(ctx, kind, "three", ""))
	if _, err := c.Chain(ctx, "a/b/c"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("a chain without an image: %v, want ErrNotFound", err)
	}
	if _, err := c.Layers(ctx, "a/b/c"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("layers of a chain without an image: %v, want ErrNotFound", err)
	}
	if got, err = c.Chain(ctx, "a/b"); err != nil || len(got.Above) != 0 {
		t.Errorf("chain a/b: %+v, %v, want nothing above", got, err)
	}
	// Trees are announced only for tops of images. Statement has the others, too.
	must(t, c.Remove(ctx, kind, "one", ""))
	if got, err = c.Chain(ctx, "a"); err != nil || got.Statement != nil || len(got.Above) != 3 {
		t.Errorf("chain a, no longer a top: %+v, %v", got, err)
	}
	if s, err := c.Statement(ctx, "a"); err != nil || s.Tree != TreeOf("a") {
		t.Errorf("statement about a: %+v, %v", s, err)
	}
}

func testChainsAbove(t *testing.T, c *catalog.Catalog) {
	Publish(t, c, "deep", "base", "m", "n", "o")
	for i := range wire.MaxAbove {
		Publish(t, c, fmt.Sprint("wide ", i), "base", fmt.Sprint("layer ", i))
	}
	got, err := c.Chain(t.Context(), "base")
	must(t, err)
	if len(got.Above) != wire.MaxAbove || got.Complete {
		t.Errorf("%d chains above, complete: %v, want %d, not complete", len(got.Above), got.Complete, wire.MaxAbove)
	}
	for _, l := range got.Above {
		if l.Parent != "base" {
			t.Errorf("chain %s is on %s, want only chains on base", l.Chain, l.Parent)
		}
	}
}

func testChunks(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	layers := make([]string, 600) // more than fit one query
	ids := make([]chunk.ID, len(layers))
	for i := range layers {
		layers[i] = fmt.Sprint("layer ", i)
		ids[i] = chunk.Sum([]byte(layers[i]))
	}
	Publish(t, c, "one", layers...)
	Publish(t, c, "two", "b")
	unknown := chunk.Sum([]byte("unknown"))
	units, err := c.Units(ctx, append(slices.Clone(ids), unknown))
	must(t, err)
	numbers, err := c.Numbers(ctx, append(slices.Clone(ids), unknown))
	must(t, err)
	if len(units) != len(ids) || len(numbers) != len(ids) {
		t.Errorf("%d units and %d numbers of %d chunks", len(units), len(numbers), len(ids))
	}
	seen := map[int64]bool{}
	for i, id := range ids {
		if want := (chunk.Unit{Pack: packOf("one"), N: uint32(i)}); units[id] != want {
			t.Fatalf("unit of chunk %d: %v, want %v", i, units[id], want)
		}
		if seen[numbers[id]] {
			t.Fatalf("two chunks have number %d", numbers[id])
		}
		seen[numbers[id]] = true
	}
	if unit, err := c.Unit(ctx, chunk.Sum([]byte("b"))); err != nil || unit.Pack != packOf("two") {
		t.Errorf("unit of a chunk: %v, %v", unit, err)
	}
	if _, err := c.Unit(ctx, unknown); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("unit of an unknown chunk: %v, want ErrNotFound", err)
	}
	if got, err := c.Inventory(ctx); err != nil || got.Chunks != 601 || got.Packs != 2 || got.Images != 2 ||
		got.Layers != 601 {
		t.Errorf("inventory: %+v, %v", got, err)
	}
	if bytes, err := c.Starts.PackBytes(ctx); err != nil || bytes != 1000 {
		t.Errorf("bytes of packs: %d, %v, want 1000", bytes, err)
	}
	if layer, blob, err := c.HasLayer(ctx, "b", "blob of b"); err != nil || !layer || !blob {
		t.Errorf("layer b: known %v, its blob %v, %v", layer, blob, err)
	}
	if layer, blob, err := c.HasLayer(ctx, "b", "other blob"); err != nil || !layer || blob {
		t.Errorf("layer b: known %v, another blob %v, %v", layer, blob, err)
	}
}

func testManifests(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	image := Publish(t, c, "one", "a", "b")
	if _, err := c.Manifest(ctx, "two"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("an unknown manifest: %v, want ErrNotFound", err)
	}
	for range 2 { // adding it twice has no effect
		must(t, c.AddSource(ctx, []catalog.Image{image, {N: 1 << 40}}, "example.org/a"))
	}
	m, err := c.Manifest(ctx, "one")
	if err != nil || !slices.Equal(m.Names, []string{"one"}) || !slices.Equal(m.Sources, []string{"example.org/a"}) ||
		!slices.Equal(m.DiffIDs, []string{"a", "b"}) || m.Statement.Tree != TreeOf("a/b") ||
		m.Statement.Format != index.Format {
		t.Errorf("manifest: %+v, %v", m, err)
	}
	layers, err := c.ImageLayers(ctx, image.N)
	if err != nil || len(layers) != 2 || layers[0].DiffID != "a" || layers[1].Chain != "a/b" ||
		layers[1].Digest != "blob of b" {
		t.Errorf("layers: %+v, %v", layers, err)
	}
}

func testSizes(t *testing.T, c *catalog.Catalog) {
	startSizes(t, c)
	expect := func(name string, want map[string]catalog.Sizes) {
		t.Helper()
		if got := Sizes(t, c, name); !reflect.DeepEqual(got, want) {
			t.Errorf("sizes of %q: %+v, want %+v", name, got, want)
		}
	}
	expect("", map[string]catalog.Sizes{})
	Publish(t, c, "one", "a", "b")
	Publish(t, c, "two", "a", "c", "d")
	one := catalog.Sizes{Chunks: 1000, Stored: 400 + 100 + 7}
	two := catalog.Sizes{Chunks: 2000, Stored: 2*(400+100) + 7}
	expect("", map[string]catalog.Sizes{"one": one, "two": two})
	expect("one", map[string]catalog.Sizes{"one": one})
	must(t, c.Remove(t.Context(), kind, "two", ""))
	expect("", map[string]catalog.Sizes{"one": {Chunks: 2000, Stored: 2*(400+100) + 7}})
}
