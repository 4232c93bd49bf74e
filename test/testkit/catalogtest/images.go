package catalogtest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/wire"
)

func testQueue(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	for _, name := range []string{"one", "two", "three"} {
		_, _, err := c.Name(ctx, name, []catalog.Image{queued(name)}, nil)
		must(t, err)
	}
	second, err := c.Next(ctx, func(i catalog.Image) bool { return i.Name != "one" })
	if err != nil || second.Name != "two" || second.State != wire.StateActive {
		t.Fatalf("first suitable image: %+v, %v, want two", second, err)
	}
	first, err := c.Next(ctx, any)
	if err != nil || first.Name != "one" {
		t.Fatalf("first image: %+v, %v, want one", first, err)
	}
	must(t, c.End(ctx, first.N, wire.StateFailed, "reason"))
	must(t, c.Release(ctx, second.N))
	if again, err := c.Next(ctx, any); err != nil || again.Name != "two" {
		t.Errorf("after Release the next image is %+v, %v, want two", again, err)
	}
	images, err := c.Images(ctx, "three")
	must(t, err)
	must(t, c.FailQueued(ctx, images, "other reason"))
	if _, err := c.Next(ctx, any); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Next of an empty queue: %v, want ErrNotFound", err)
	}
	for name, reason := range map[string]string{"one": "reason", "three": "other reason"} {
		if images, err := c.Images(ctx, name); err != nil || images[0].State != wire.StateFailed ||
			images[0].Error != reason {
			t.Errorf("image %s: %+v, %v, want it failed with %q", name, images, err, reason)
		}
	}
	// A failed image is queued again, at the end of the queue.
	if _, _, err := c.Name(ctx, "one", []catalog.Image{queued("one")}, nil); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Next(ctx, any); err != nil || again.Name != "one" {
		t.Errorf("a failed image that was named again: %+v, %v, want it queued", again, err)
	}
	counts, err := c.States(ctx)
	if want := map[string]int64{wire.StateActive: 2, wire.StateFailed: 1}; err != nil ||
		!reflect.DeepEqual(counts, want) {
		t.Errorf("states: %v, %v, want %v", counts, err, want)
	}
}

// Each image is given to one worker only.
func testContention(t *testing.T, c *catalog.Catalog) {
	const images, workers = 40, 8
	for i := range images {
		name := fmt.Sprint(i)
		_, _, err := c.Name(t.Context(), name, []catalog.Image{queued(name)}, nil)
		must(t, err)
	}
	var mu sync.Mutex
	given := map[int64]int{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				image, err := c.Next(t.Context(), any)
				if errors.Is(err, catalog.ErrNotFound) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				given[image.N]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(given) != images {
		t.Errorf("%d images were given to workers, want %d", len(given), images)
	}
	for n, times := range given {
		if times != 1 {
			t.Errorf("image %d was given to %d workers", n, times)
		}
	}
}

// If the process crashes during each ingestion of an image, the image fails after some tries.
func testRequeue(t *testing.T, c *catalog.Catalog) {
	image := queue(t, c, "one")
	tries := 1
	for ; ; tries++ {
		must(t, c.Requeue(t.Context()))
		again, err := c.Next(t.Context(), any)
		if errors.Is(err, catalog.ErrNotFound) {
			break
		}
		if err != nil || again.N != image.N || tries > 10 {
			t.Fatalf("try %d: %+v, %v", tries+1, again, err)
		}
	}
	if got := states(t, c, "one"); tries < 2 || got != "one one failed;" {
		t.Errorf("after %d tries: %s, want it failed after two or more", tries, got)
	}
}

func testNames(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	Publish(t, c, "a:1", "x")
	// Expected images do not replace the present ones.
	if _, err := c.Expect(ctx, "a:1", []catalog.Image{queued("new")}); err != nil {
		t.Fatal(err)
	}
	if got, want := states(t, c, "a:1"), "a:1 a:1 ready;a:1 new queued;"; got != want {
		t.Errorf("while an image is expected: %s, want %s", got, want)
	}
	now, gone, err := c.Name(ctx, "a:1", []catalog.Image{queued("new"), queued("third")}, []string{"coming"})
	if err != nil || len(now) != 2 || now[0].Digest != "new" || len(gone) != 1 || gone[0].Digest != "a:1" {
		t.Errorf("Name: now %+v, gone %+v, %v", now, gone, err)
	}
	if _, err := c.Expect(ctx, "a:1", []catalog.Image{queued("coming")}); err != nil {
		t.Fatal(err)
	}
	if _, gone, err = c.Name(ctx, "a:1", []catalog.Image{queued("new")}, []string{"coming"}); err != nil ||
		len(gone) != 1 {
		t.Errorf("Name with an expected image: gone %+v, %v, want the third image only", gone, err)
	}
	for digest, want := range map[string][]string{"new": {"a:1"}, "coming": {"a:1"}, "third": nil} {
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
	if gone, err := c.Remove(ctx, "a:1", "new"); err != nil || len(gone) != 1 {
		t.Errorf("removed by digest: %+v, %v, want one", gone, err)
	}
	if gone, err := c.Remove(ctx, "a:1", ""); err != nil || len(gone) != 1 || states(t, c, "") != "" {
		t.Errorf("removed by name: %+v, %v, want one", gone, err)
	}
}

// Publish and Release of a removed image change nothing, even if the name was added again.
func testRemovedImage(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	image := queue(t, c, "a")
	p := publication(t, c, image, "x")
	if _, err := c.Remove(ctx, "a", ""); err != nil {
		t.Fatal(err)
	}
	again, _, err := c.Name(ctx, "a", []catalog.Image{queued("a")}, nil)
	if err != nil || again[0].N == image.N {
		t.Fatalf("a new image has the number of a removed one: %+v, %v", again, err)
	}
	if err := c.Publish(ctx, p); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Publish of a removed image: %v, want ErrNotFound", err)
	}
	if known, err := c.HasPack(ctx, p.Packs[0].ID); known || err != nil {
		t.Errorf("its pack is known: %v, %v", known, err)
	}
	if err := c.Release(ctx, image.N); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Release of a removed image: %v, want ErrNotFound", err)
	}
	must(t, c.End(ctx, image.N, wire.StateFailed, "late"))
	if got := states(t, c, "a"); got != "a a queued;" {
		t.Errorf("the new image: %s, want it queued", got)
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
	if _, err := c.Remove(ctx, "three", ""); err != nil {
		t.Fatal(err)
	}
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
	if _, err := c.Remove(ctx, "one", ""); err != nil {
		t.Fatal(err)
	}
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
	if bytes, err := c.PackBytes(ctx); err != nil || bytes != 1000 {
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
		if got, err := c.Sizes(t.Context(), name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("sizes of %q: %+v, %v, want %+v", name, got, err, want)
		}
	}
	expect("", map[string]catalog.Sizes{})
	Publish(t, c, "one", "a", "b")
	Publish(t, c, "two", "a", "c", "d")
	one := catalog.Sizes{Chunks: 1000, Stored: 400 + 100 + 7}
	two := catalog.Sizes{Chunks: 2000, Stored: 2*(400+100) + 7}
	expect("", map[string]catalog.Sizes{"one": one, "two": two})
	expect("one", map[string]catalog.Sizes{"one": one})
	if _, err := c.Remove(t.Context(), "two", ""); err != nil {
		t.Fatal(err)
	}
	expect("", map[string]catalog.Sizes{"one": {Chunks: 2000, Stored: 2*(400+100) + 7}})
}
