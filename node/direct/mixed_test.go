package direct

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store"
)

// If two formats lead to the same tree, what is kept says from then on, also after a restart, why
// the tree is believed.
func TestTwoFormatsOfATree(t *testing.T) {
	key := signer(1).Public().(ed25519.PublicKey)
	by := index.FormatKey(key)
	attached := func(im *image) { im.Format, im.By, im.Tables = "attached", by, nil }
	attachedFirst := func(_ *Images, im *image) { attached(im) }
	for what, c := range map[string]struct {
		first  func(m *Images, im *image) // changes what is kept first, of the format tables
		second func(im *image)
		keys   []ed25519.PublicKey
		want   string // the format, and the key
	}{
		"tables, then an attached index": {func(*Images, *image) {}, attached, []ed25519.PublicKey{key},
			"attached " + by},
		"an attached index, then tables": {attachedFirst, func(*image) {}, []ed25519.PublicKey{key},
			"attached " + by},
		"an attached index whose key is gone, then tables": {attachedFirst, func(*image) {}, nil,
			"tables "},
		"other tables": {func(*Images, *image) {}, func(im *image) { im.Format = "soci" }, nil, "tables "},
		"wrong tables, then an attached index": {func(m *Images, im *image) {
			if err := m.verdicts.add(verdict{claim: im.claims()[0], Wrong: "it differs"}); err != nil {
				t.Fatal(err)
			}
		}, attached, []ed25519.PublicKey{key}, "tables "},
	} {
		root := t.TempDir()
		m := open(t, root, "registry.test/*")
		m.config.Keys = c.keys
		tree, _ := keep(t, m, "a")
		first := *m.kept.imageOf(tree)
		second := first
		c.first(m, &first)
		if err := m.kept.change(tree, first); err != nil {
			t.Fatal(err)
		}
		c.second(&second)
		second.Places = []place{{Repository: "registry.test/b", Manifest: digest.FromString("b")}}
		for range 2 {
			fresh, err := os.MkdirTemp(m.kept.dir, newPrefix+"*")
			if err != nil {
				t.Fatal(err)
			}
			replaces := func(old *image) bool { return m.replaces(&second, old) }
			if err := m.kept.publish(tree, fresh, second, replaces); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range []*Images{m, open(t, root)} {
			im := m.kept.imageOf(tree)
			if im == nil || len(im.Places) != 2 || fmt.Sprint(im.Format, " ", im.By) != c.want ||
				(len(im.Tables) == 0) != (im.By != "") {
				t.Errorf("%s: kept is %+v, want %s", what, im, c.want)
			}
		}
	}
}

// An image one of whose layers has a table in a format, while another one is read as a whole, is
// read right after a restart, too. So is another image that has one of these layers with its own
// table, whose units have the same numbers. When the reader changes between the two, one answer is
// wrong.
func TestMixedLayers(t *testing.T) {
	f := startFake(t)
	mixed := small
	mixed.layer = func(t *testing.T, archive []byte) (blob, ztoc []byte, annotations map[string]string) {
		if bytes.Contains(archive, []byte("large")) {
			return small.layer(t, archive)
		}
		return lazyFormats[0].layer(t, archive)
	}
	p := f.push(t, "a/image", mixed, nil, layerOf("large"), layerOf("small"))
	q := f.push(t, "b/image", lazyFormats[0], nil, layerOf("small"))
	if p.layers[1].Digest != q.layers[0].Digest {
		t.Fatal("the images have no layer in common")
	}
	root := t.TempDir()
	var trees []chunk.ID
	m := f.images(t, root, []string{"**"}, nil)
	for _, one := range []pushed{p, q} {
		tree, err := f.ask(t, m, one)
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, tree)
	}
	again := f.images(t, root, []string{"**"}, nil)
	if got := m.kept.imageOf(trees[0]); got.Format != "soci" || len(got.Tables) != 2 {
		t.Errorf("kept is %+v, want two tables", got)
	}
	for _, m := range []*Images{m, again} {
		for _, tree := range trees {
			answers, most := 0, 1 // one is wrong
			for _, ref := range refsOf(t, m, tree) {
				take := func(a store.Answer) error {
					answers++
					batch, err := decoded(a)
					if err == nil {
						_, err = batch.Lookup(ref.ID)
					}
					if err != nil {
						err = &chunk.InvalidError{What: "unit", Err: err} // as package store does
					}
					return err
				}
				source := m.Source(noHubs{})
				if err := source.FetchUnit(t.Context(), ref.Unit, take); err != nil {
					t.Errorf("chunk %s of tree %s: %v", ref.ID.Short(), tree.Short(), err)
				}
				isShared := len(m.kept.layersOf(ref.Unit.Pack)) > 1
				if err := source.Fetch(t.Context(), ref, take); (err == nil) != isShared {
					t.Errorf("chunk %s of tree %s, by its ID: %v", ref.ID.Short(), tree.Short(), err)
				}
				if most++; isShared {
					most++
				}
			}
			if answers > most {
				t.Errorf("tree %s was read by %d answers, want %d at most", tree.Short(), answers, most)
			}
		}
	}
	if n := verifyAll(t, again); n != 2 || again.Status().Unverified != 0 || again.Status().Wrong != 0 {
		t.Errorf("%d images were verified: %+v", n, again.Status())
	}
	if !slices.Equal(again.kept.imageOf(trees[0]).claims(), m.kept.imageOf(trees[0]).claims()) {
		t.Error("after a restart, the tables say something else")
	}
}

// refsOf returns the chunks of a tree, with their units.
func refsOf(t *testing.T, m *Images, tree chunk.ID) (refs []chunk.Ref) {
	t.Helper()
	file, err := os.Open(m.kept.path(tree, "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var extents, metadata bytes.Buffer
	if _, err := index.Receive(file, tree, &extents, &metadata); err != nil {
		t.Fatal(err)
	}
	all, err := index.OpenMap(bytes.NewReader(extents.Bytes()), tree, index.NewPages(16))
	if err != nil {
		t.Fatal(err)
	}
	err = openLocations(t, m.kept.path(tree, "locations"), tree).Each(func(i int64, u chunk.Unit) error {
		x, err := all.Extent(i)
		refs = append(refs, chunk.Ref{ID: x.ID, Length: uint32(x.Length), Unit: u})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return refs
}
