package images

import (
	"bytes"
	"io"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	tars "lighter/test/testkit/tarball"
)

// Base returns the image base with one more layer for each list of items.
func Base(tb testing.TB, layers ...[]tars.Item) v1.Image {
	tb.Helper()
	image, err := Open(Dir("base"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, items := range layers {
		image = OnTop(tb, image, items...)
	}
	return image
}

// OnTop returns an image with one more layer.
func OnTop(tb testing.TB, image v1.Image, items ...tars.Item) v1.Image {
	tb.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tars.Of(items...))), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return image
}
