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
	"lighter/test/testkit/layout"
	"lighter/test/testkit/registrytest"
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
