// Package images has the images that test/setup has made, and measures how much of them the machine
// of a site receives. It is for enclosed tests (site.Enclosed), which have a work directory.
package images

import (
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

// Dir returns the OCI layout of an image.
func Dir(name string) string {
	work, err := site.Work()
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
