// Package images reads the images that test/setup has made, writes others, and measures how much of
// them the machine of a site receives. It is for enclosed tests (site.Enclosed), which have a work
// directory.
package images

import (
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	registry "github.com/google/go-containerregistry/pkg/v1/layout"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// Dir returns the OCI layout of an image.
func Dir(name string) string {
	work, err := workdir.Path()
	if err != nil {
		panic(err) // site.Enclosed has found it
	}
	return filepath.Join(work, "images", name)
}

// Manifest returns the manifest of an image.
func Manifest(tb testing.TB, name string) ocispec.Manifest {
	tb.Helper()
	m, err := layout.Manifest(Dir(name))
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// Open opens the first image in an OCI layout.
func Open(dir string) (v1.Image, error) {
	index, err := registry.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	return index.Image(manifest.Manifests[0].Digest)
}

// Write writes an image to a new OCI layout, in which it has a tag.
func Write(dir, tag string, image v1.Image) error {
	path, err := registry.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendImage(image, registry.WithAnnotations(map[string]string{ocispec.AnnotationRefName: tag}))
}

// Size returns the compressed size of an image's layers, in bytes.
func Size(tb testing.TB, name string) (bytes int64) {
	tb.Helper()
	for _, layer := range Manifest(tb, name).Layers {
		bytes += layer.Size
	}
	return bytes
}

// Received runs fn, and returns the number of bytes that the machine received over the link
// meanwhile.
func Received(tb testing.TB, s *site.Site, fn func()) int64 {
	tb.Helper()
	before, err := s.Machine.Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	fn()
	after, err := s.Machine.Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	return after - before
}
