package registry_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	own "lighter/store/registry"
	tars "lighter/test/testkit/tarball"
)

// pushed pushes an image of two layers to a new registry. change may change the image's config.
func pushed(t *testing.T, change func(*v1.ConfigFile)) (ref string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref = strings.TrimPrefix(server.URL, "http://") + "/tools/shell:1"
	var layers []v1.Layer
	for _, text := range []string{"one", "two"} {
		blob := tars.Of(tars.File(text, text))
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(blob)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, layer)
	}
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	change(config)
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, image); err != nil {
		t.Fatal(err)
	}
	return ref
}

// All layers of an image arrive in order, and its config.
func TestPull(t *testing.T) {
	image, err := own.Find(t.Context(), pushed(t, func(c *v1.ConfigFile) { c.Author = "us" }), "", false)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	var last int64
	err = image.Layers(t.Context(), func(layer io.Reader) error {
		entry, err := tar.NewReader(layer).Next() // not to the end
		if err == nil {
			files = append(files, entry.Name)
		}
		return err
	}, func(done int64) { last = done })
	if err != nil || strings.Join(files, " ") != "one two" || last != image.Size {
		t.Errorf("got files %q and %d of %d bytes, %v; want one, two and all", files, last, image.Size, err)
	}
	if config, err := image.Config(); err != nil || !bytes.Contains(config, []byte(`"us"`)) {
		t.Errorf("got config %s, %v", config, err)
	}
}

// A layer whose contents are not those of the config is refused, and the error of unpack arrives.
func TestWrongLayers(t *testing.T) {
	ref := pushed(t, func(c *v1.ConfigFile) { c.RootFS.DiffIDs[1] = c.RootFS.DiffIDs[0] })
	image, err := own.Find(t.Context(), ref, "", false)
	if err != nil {
		t.Fatal(err)
	}
	ignore := func(int64) {}
	err = image.Layers(t.Context(), func(io.Reader) error { return nil }, ignore)
	if err == nil || !strings.Contains(err.Error(), "layer 2") || !strings.Contains(err.Error(), "digest") {
		t.Errorf("got %v, want an error about the digest of layer 2", err)
	}
	full := errors.New("no space left on device")
	if err := image.Layers(t.Context(), func(io.Reader) error { return full }, ignore); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}

// References that cannot be found, and plain HTTP to another machine, are refused.
func TestFindErrors(t *testing.T) {
	ref := pushed(t, func(*v1.ConfigFile) {})
	if _, err := own.Find(t.Context(), ref+"x", "", false); err == nil {
		t.Error("a missing tag: got no error")
	}
	if _, err := own.Find(t.Context(), "A:", "", false); !errors.Is(err, own.ErrNoImage) {
		t.Errorf("no reference: got %v, want %v", err, own.ErrNoImage)
	}
}
