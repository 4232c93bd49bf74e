package resolver

import (
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/wire"
)

// The statement about an image is returned only if a pinned key has signed it for that manifest.
func TestStatementAboutAnImage(t *testing.T) {
	image := newImage("app", "a", "b")
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*wire.Manifest)
		good   bool
	}{
		"genuine": {func(*wire.Manifest) {}, true},
		"another key": {func(m *wire.Manifest) {
			m.Image = index.SignImage([]ed25519.PrivateKey{other}, image.manifest, m.Image.Chain, image.repositories)
		}, false},
		"more places": {func(m *wire.Manifest) {
			m.Image.Repositories = append(m.Image.Repositories, "registry.test/z")
		}, false},
		"another image":   {func(m *wire.Manifest) { *m = *newImage("other", "a").answer(t) }, false},
		"an empty answer": {func(m *wire.Manifest) { *m = wire.Manifest{} }, false},
	} {
		r, _, _ := newTrusting(t, func(context.Context, string) (*wire.Manifest, error) {
			m := image.answer(t)
			c.change(m)
			return m, nil
		})
		got, err := r.Image(t.Context(), image.manifest)
		switch {
		case c.good && (err != nil || !slices.Equal(got.Repositories, image.repositories)):
			t.Errorf("%s: got %+v, %v; want the image's repositories", name, got, err)
		case !c.good && err == nil:
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
	r, _, _ := newTrusting(t, knowing(t))
	if _, err := r.Image(t.Context(), image.manifest); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("an unknown manifest: got %v, want %v", err, chunk.ErrNotFound)
	}
}
