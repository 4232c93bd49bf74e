package catalog

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

func openTest(t *testing.T) *Catalog {
	t.Helper()
	c, err := Open(t.Context(), filepath.Join(t.TempDir(), "catalog ?#.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func anyImage(Image) bool { return true }

// publish makes an image of one-chunk layers known; layer "a" on "b" has the
// chain "a/b".
func publish(t *testing.T, c *Catalog, name string, layers ...string) Image {
	t.Helper()
	ctx := t.Context()
	if _, _, err := c.Name(ctx, name, []Image{{Root: name, Digest: name, State: wire.StateQueued}}, nil); err != nil {
		t.Fatal(err)
	}
	image, err := c.Next(ctx, anyImage)
	if err != nil || image.Name != name {
		t.Fatalf("next is %+v, %v", image, err)
	}
	p := &Publication{Image: image.N, Size: 7, Blobs: []Blob{{Digest: "config of " + name, Size: 7}}}
	parent := ""
	for _, layer := range layers {
		chain := layer
		if parent != "" {
			chain = parent + "/" + layer
		}
		p.Chains = append(p.Chains, Chain{chain, parent, layer})
		p.Blobs = append(p.Blobs, Blob{Digest: "blob of " + layer, Size: 100, DiffID: layer, Chain: chain})
		if known, _, err := c.HasLayer(ctx, layer, ""); err != nil {
			t.Fatal(err)
		} else if !known {
			p.Layers = append(p.Layers, Layer{DiffID: layer, Bytes: 10, Entries: 1, New: []uint32{uint32(len(p.Chunks))}})
			p.Chunks = append(p.Chunks, Chunk{ID: chunk.Sum([]byte(layer)), Length: 1000, Unit: uint32(len(p.Chunks))})
		}
		parent = chain
	}
	if len(p.Chunks) > 0 {
		p.Packs = []Pack{{ID: chunk.Sum([]byte("pack of " + name)), Size: 500, Units: make([]Unit, len(p.Chunks))}}
		for i := range p.Chunks {
			p.Packs[0].Units[i] = Unit{Plain: 1000, Stored: 400}
		}
	}
	p.Tree = Tree{ID: chunk.Sum([]byte(parent)), Files: 1, Bytes: 1000}
	p.Statement = index.Statement{Chain: parent, Tree: p.Tree.ID, Format: index.Format, Signature: []byte("signed")}
	if err := c.Publish(ctx, p); err != nil {
		t.Fatal(err)
	}
	return image
}

func TestChainSaysWhatStandsOnIt(t *testing.T) {
	c := openTest(t)
	publish(t, c, "one", "a")
	publish(t, c, "two", "a", "b")
	publish(t, c, "three", "a", "b", "c")
	publish(t, c, "other", "a", "x", "y")
	got, err := c.Chain(t.Context(), "a")
	if err != nil || !got.Complete || got.Statement == nil || got.Parent != "" || got.DiffID != "a" {
		t.Fatalf("%+v, %v", got, err)
	}
	var above []string
	for _, l := range got.Above {
		above = append(above, fmt.Sprintf("%s on %s: %v", l.Chain, l.Parent, l.Statement != nil))
	}
	slices.Sort(above[:2])
	slices.Sort(above[2:])
	want := []string{"a/b on a: true", "a/x on a: false", "a/b/c on a/b: true", "a/x/y on a/x: true"}
	if !slices.Equal(above, want) {
		t.Errorf("above a: %q", above)
	}
	if layers, err := c.Layers(t.Context(), "a/b/c"); err != nil || !slices.Equal(layers, []string{"a", "b", "c"}) {
		t.Errorf("layers %q, %v", layers, err)
	}
	// What no image has any more is not spoken of.
	if _, err := c.Remove(t.Context(), "three", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Chain(t.Context(), "a/b/c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a chain without an image: %v", err)
	}
	if got, err = c.Chain(t.Context(), "a/b"); err != nil || len(got.Above) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	// And of a tree only as long as an image ends there.
	if _, err := c.Remove(t.Context(), "one", ""); err != nil {
		t.Fatal(err)
	}
	if got, err = c.Chain(t.Context(), "a"); err != nil || got.Statement != nil || len(got.Above) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestChainsAboveAreBoundedNearestFirst(t *testing.T) {
	c := openTest(t)
	publish(t, c, "base", "base")
	publish(t, c, "deep", "base", "m", "n", "o")
	// A thousand more on the base, by hand: publishing each would take too long.
	err := c.update(t.Context(), func(tx *sql.Tx) error {
		for i := range wire.MaxAbove {
			for _, q := range []string{
				`INSERT INTO images (n, name, root, digest, platform, state, error, size, turn, tries, updated) VALUES (?1, 'i' || ?1, '', ?1, '', 'ready', '', 0, 0, 0, 0)`,
				`INSERT INTO image_blobs (image, position, chain, digest, media_type, size) VALUES (?1, 0, 'c' || ?1, '', '', 0)`,
				`INSERT INTO chains (chain, parent, diff_id) VALUES ('c' || ?1, 'base', 'base')`,
			} {
				if _, err := tx.Exec(q, 1000+i); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Chain(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Above) != wire.MaxAbove || got.Complete {
		t.Errorf("%d above, complete: %v", len(got.Above), got.Complete)
	}
	for _, l := range got.Above {
		if l.Parent != "base" {
			t.Errorf("%s is among the nearest", l.Chain)
		}
	}
}

func TestImageThatWasTakenAwayIsNotPublished(t *testing.T) {
	c := openTest(t)
	ctx := t.Context()
	if _, _, err := c.Name(ctx, "a", []Image{{Root: "r", Digest: "d", State: wire.StateQueued}}, nil); err != nil {
		t.Fatal(err)
	}
	image, err := c.Next(ctx, anyImage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Remove(ctx, "a", ""); err != nil {
		t.Fatal(err)
	}
	// The name comes back, as another image.
	again, _, err := c.Name(ctx, "a", []Image{{Root: "r", Digest: "d", State: wire.StateQueued}}, nil)
	if err != nil || again[0].N == image.N {
		t.Fatalf("%+v, %v", again, err)
	}
	p := &Publication{Image: image.N, Packs: []Pack{{ID: chunk.Sum(nil)}}, Statement: index.Statement{Chain: "c"}}
	if err := c.Publish(ctx, p); !errors.Is(err, ErrNotFound) {
		t.Errorf("published: %v", err)
	}
	if known, err := c.HasPack(ctx, chunk.Sum(nil)); known || err != nil {
		t.Errorf("a part of it is known: %v, %v", known, err)
	}
	if err := c.End(ctx, image.N, wire.StateFailed, "late"); err != nil {
		t.Fatal(err)
	}
	if images, err := c.Images(ctx, "a"); err != nil || images[0].State != wire.StateQueued {
		t.Errorf("%+v, %v", images, err)
	}
}

func TestCatalogOfAnotherVersionIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.write.Exec(`UPDATE meta SET value = '99' WHERE name = 'schema'`); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path); err == nil {
		t.Error("a catalog of schema 99 was opened")
	}
}

func TestRuns(t *testing.T) {
	for _, numbers := range [][]int64{nil, {1}, {1, 2, 3}, {5, 1, 9, 2, 8}, {7, 7, 7}, {1 << 30, 1}} {
		b := encodeRuns(slices.Clone(numbers))
		var back []int64
		if err := decodeRuns(b, func(first, end int64) {
			for n := first; n < end; n++ {
				back = append(back, n)
			}
		}); err != nil {
			t.Fatal(err)
		}
		want := slices.Compact(slices.Sorted(slices.Values(numbers)))
		if !slices.Equal(back, want) {
			t.Errorf("%d came back as %d", want, back)
		}
	}
	if golden := fmt.Sprintf("%x", encodeRuns([]int64{1, 2, 3, 500, 501, 9})); golden != "01030501ea0302" {
		t.Errorf("the runs are %s", golden)
	}
}

func FuzzDecodeRuns(f *testing.F) {
	f.Add(encodeRuns([]int64{1, 2, 3, 500, 501, 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		last := int64(0)
		_ = decodeRuns(b, func(first, end int64) {
			if first < last || end < first {
				t.Errorf("a run from %d to %d behind %d", first, end, last)
			}
			last = end
		})
	})
}

// A catalog of the version before becomes one of this version: what it has stays,
// and its trees get new locations in turn.
func TestFirstVersionIsUpgraded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog.db")
	c, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, c, "one", "a")
	for _, query := range []string{`DROP TABLE formers`, `DROP TABLE recordings`, `DROP TABLE traces`, `DROP TABLE startups`, `DROP TABLE startup_packs`,
		`DROP TABLE layouts`, `DROP TABLE image_sizes`, `DROP INDEX statements_tree`, `UPDATE meta SET value = '1' WHERE name = 'schema'`} {
		if _, err := c.write.Exec(query); err != nil {
			t.Fatal(query, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if c, err = Open(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		tree := chunk.Sum([]byte("a"))
		if due, err := c.NextDue(t.Context()); err != nil || due.Tree != tree || !due.Served {
			t.Errorf("due is %+v, %v", due, err)
		}
		if _, err := c.Locations(t.Context(), tree); !errors.Is(err, ErrNotFound) {
			t.Errorf("locations that are to be made: %v", err)
		}
		if images, err := c.Images(t.Context(), "one"); err != nil || len(images) != 1 || images[0].Tree != tree {
			t.Errorf("images are %+v, %v", images, err)
		}
		if err := c.countSizes(t.Context()); err != nil {
			t.Errorf("sizes cannot be counted: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
