package direct

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/store/attachment"
	"lighter/test/testkit/cachetest"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
	"lighter/test/testkit/tarball"
)

// Two images have a base layer in common. One of them has another file instead of one of the base.
func TestLayerOfTwoImages(t *testing.T) {
	dir := t.TempDir()
	empty, base, top := filepath.Join(dir, "empty"), filepath.Join(dir, "base"), filepath.Join(dir, "top")
	random := func(seed byte) []byte {
		b := make([]byte, 1<<20)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
		return b
	}
	err := errors.Join(os.MkdirAll(filepath.Join(empty, "blobs/sha256"), 0o700),
		layout.Write(empty, v1.Manifest{}, v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "amd64"},
			RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}),
		layout.Extend(empty, base, func(l *layout.Layer) error {
			return errors.Join(l.File("a", random(1)), l.File("b", random(2)))
		}),
		layout.Extend(base, top, func(l *layout.Layer) error { return l.File("a", []byte("another")) }))
	if err != nil {
		t.Fatal(err)
	}
	r, key := registrytest.Start(t, true), signer(1)
	m := believing(t, r, t.TempDir(), key)
	var trees []chunk.ID
	for i, from := range []string{base, top} {
		ref, _ := r.Push(t, from, fmt.Sprintf("team/image%d:1", i))
		im := attachTo(t, ref, key, attachment.Place{})
		answer, err := m.Answerer("attached").Answer(t.Context(), pulled(im, ref))
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, answer.Image.Statement.Tree)
	}
	for _, tree := range trees {
		wrong, refs := 0, 0
		for _, ref := range refsOf(t, m, tree) {
			refs++
			err := m.Source(noHubs{}).FetchUnit(t.Context(), ref.Unit, func(a store.Answer) error {
				batch, err := decoded(a)
				if err == nil {
					_, err = batch.Lookup(ref.ID)
				}
				if err != nil {
					wrong++
					err = &chunk.InvalidError{What: "unit", Err: err} // as package store does
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
		if wrong > 0 {
			t.Errorf("tree %s: %d wrong answers for %d chunks", tree.Short(), wrong, refs)
		}
	}
}

// Two images share a layer. The second image's readers fetch nothing of it, and decode nothing: its
// chunks have the same IDs in both, also those of SOCI, which are derived. The first image's
// readers fetch and decode each unit once.
func TestSharedLayerIsFetchedOnce(t *testing.T) {
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise) // it never fails
	shared := tarball.Of(tarball.File("a", string(noise[:700_000])), tarball.File("b", string(noise[700_000:])))
	for _, format := range lazyFormats {
		f := startFake(t)
		first := f.push(t, "a/first", format, nil, shared, noisy("own", 2, 1<<21))
		second := f.push(t, "a/second", format, nil, shared, noisy("own", 3, 1<<21))
		layer := first.layers[0].Digest
		if second.layers[0].Digest != layer {
			t.Fatal("the images have no layer in common")
		}
		m, cache := f.images(t, t.TempDir(), []string{"**"}, nil), cachetest.NewMemory()
		for i, p := range []pushed{first, second} {
			tree, err := f.ask(t, m, p)
			if err != nil {
				t.Fatal(err)
			}
			refs := refsOf(t, m, tree)
			units := map[chunk.Unit]int64{} // of the shared layer, with their lengths
			for _, ref := range refs {
				if ref.Unit.Pack.String() == layer.Encoded() {
					if _, units[ref.Unit], _, err = m.kept.layersOf(ref.Unit.Pack)[0].unit(ref.Unit.N); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(units) < 2 {
				t.Fatalf("%s: the layer has %d units, want several", format.name, len(units))
			}
			before, source := f.received(layer), observe(m, func(*store.Answer) {})
			readThrough(t, source, cache, refs)
			want, decoded := 0, 0
			if i == 0 {
				for _, length := range units {
					want += int(length)
				}
				decoded = 1
			}
			if got := f.received(layer) - before; got != want {
				t.Errorf("%s: readers of %s have fetched %d bytes of the shared layer, want %d", format.name,
					p.repository, got, want)
			}
			for u := range units {
				if n := source.decodings(u); n != decoded {
					t.Errorf("%s: readers of %s have decoded unit %s %d times, want %d", format.name, p.repository,
						u, n, decoded)
				}
			}
		}
	}
}
