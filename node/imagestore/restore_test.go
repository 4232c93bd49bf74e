package imagestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lighter/wire"
)

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Without lighter.json and without a hub, the tools find what they found before. When the hub is
// back, nothing is fetched again, and no image disappears.
func TestListIsLost(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	h.add(t, "reg.example.org/a:1", "a")
	h.add(t, "tools/b:1", "b", "hub.test:5000/tools/b")
	gone := h.add(t, "tools/used:1", "used")
	h.used[gone.Chain] = true
	s := h.open(t, dir)
	update(t, s)
	h.images = slices.DeleteFunc(h.images, func(i wire.Image) bool { return i.Digest == gone.Digest })
	update(t, s)
	clear(h.used)
	names := []string{"hub.test:5000/tools/b:1", "localhost/tools/b:1", "localhost/tools/used@" + gone.Digest,
		"reg.example.org/a:1"}
	expect(t, dir, 4, names...)
	before := slices.Concat(readFile(t, imagesFile(dir)), readFile(t, layersFile(dir)))
	for _, damage := range []func(string) error{os.Remove, func(file string) error {
		return os.WriteFile(file, []byte("{"), 0o600)
	}} {
		if err := damage(stateFile(dir)); err != nil {
			t.Fatal(err)
		}
		h.away = errors.New("away")
		s := h.open(t, dir)
		s.check()
		if s.update(t.Context()) == nil {
			t.Fatal("the hub is not away")
		}
		after := slices.Concat(readFile(t, imagesFile(dir)), readFile(t, layersFile(dir)))
		if !bytes.Equal(after, before) {
			t.Errorf("the lists have changed from\n%s to\n%s", before, after)
		}
		if status := s.Status(); status.Images != 3 || status.Gone != 1 {
			t.Errorf("got %+v, want 3 images, 1 of them gone", status)
		}
		h.away = nil
		fetched := h.fetched.Load()
		update(t, s)
		expect(t, dir, 4, names...)
		if h.fetched.Load() != fetched {
			t.Error("images were fetched that the store has")
		}
	}
}

// Only images whose files have their digests are believed. A list that the tools could not read is
// not made.
func TestForgedImages(t *testing.T) {
	h, dir := newHub(), t.TempDir()
	h.add(t, "reg.example.org/a:1", "a")
	h.add(t, "reg.example.org/b:1", "b")
	update(t, h.open(t, dir))
	var images []image
	if err := json.Unmarshal(readFile(t, imagesFile(dir)), &images); err != nil {
		t.Fatal(err)
	}
	h.away = errors.New("away")
	a, b := images[0], images[1]
	good := readFile(t, filepath.Join(imageDir(dir, a.ID), fileOf("sha256:"+a.ID)))
	forge := func(change func(b *image)) []image {
		b := b
		change(&b)
		return []image{a, b}
	}
	for what, c := range map[string]struct {
		images []image
		config []byte
		names  []string
	}{
		"damaged":    {images, append(slices.Clone(good), ' '), b.Names},
		"names":      {forge(func(b *image) { b.Names = append(b.Names, a.Names...) }), good, nil},
		"twice":      {[]image{a, a}, good, a.Names},
		"a path":     {forge(func(b *image) { b.ID = "../overlay-images/" + b.ID }), good, a.Names},
		"an alien":   {forge(func(b *image) { b.Digest, b.BigDataNames = a.Digest, nil }), good, a.Names},
		"no digests": {forge(func(b *image) { b.Digest = "x" }), good, a.Names},
		"no name":    {forge(func(b *image) { b.Names = []string{"//"} }), good, a.Names},
	} {
		if c.names == nil {
			c.names = append(slices.Clone(a.Names), b.Names...)
		}
		slices.Sort(c.names)
		text, err := json.Marshal(c.images)
		if err == nil {
			err = errors.Join(os.WriteFile(imagesFile(dir), text, 0o600), os.Remove(stateFile(dir)),
				os.WriteFile(filepath.Join(imageDir(dir, a.ID), fileOf("sha256:"+a.ID)), c.config, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		h.open(t, dir)
		got, layers := listed(t, dir)
		if !slices.Equal(got, c.names) || layers != 3 {
			t.Errorf("%s: got names %q and %d layers, want %q and 3", what, got, layers, c.names)
		}
	}
}
