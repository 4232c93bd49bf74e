package conversion_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/compress"
	"lighter/format/soci"
	"lighter/store/conversion"
	tars "lighter/test/testkit/tarball"
)

// random returns bytes that cannot be compressed.
func random(n int, seed uint64) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	if _, err := r.Read(b); err != nil {
		panic(err)
	}
	return string(b)
}

// large returns an image with Docker's media types. Its layers are: gzip, plain, zstd, a small one,
// and the first one again. All but the small one have more than 10 MiB.
func large(t testing.TB) v1.Image {
	t.Helper()
	image, err := largeOnce()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

var largeOnce = sync.OnceValues(func() (v1.Image, error) {
	const half = 6 << 20
	low := tars.Of(tars.File("usr/first", random(half, 1)), tars.File("usr/second", random(half, 2)),
		tars.Link("usr/hard", "usr/second"))
	plain := tars.Of(tars.File("usr/third", random(half, 3)), tars.File("usr/first", random(half, 4)))
	high := tars.Of(tars.File("usr/zstd", random(2*half, 5)))
	small := tars.Of(tars.File("usr/third", "small"))
	zipped, err := compress.GzipMember(1)(low)
	if err != nil {
		return nil, err
	}
	zstded, err := compress.ZstdFrame(zstd.SpeedFastest, 1)(high)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.DockerManifestSchema2)
	image = mutate.ConfigMediaType(image, types.DockerConfigJSON)
	var diffIDs []v1.Hash
	for _, l := range []struct {
		stored, plain []byte
		mediaType     types.MediaType
	}{{zipped, low, types.DockerLayer}, {plain, plain, types.DockerUncompressedLayer},
		{zstded, high, types.OCILayerZStd}, {small, small, types.OCIUncompressedLayer},
		{zipped, low, types.DockerLayer}} {
		diffID, _, err := v1.SHA256(bytes.NewReader(l.plain))
		if err != nil {
			return nil, err
		}
		diffIDs = append(diffIDs, diffID)
		if image, err = mutate.Append(image, mutate.Addendum{Layer: static.NewLayer(l.stored, l.mediaType),
			Annotations: map[string]string{"org.example.layer": "yes"}}); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.RootFS.DiffIDs = "linux", "amd64", diffIDs
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, map[string]string{"org.example.image": "yes",
		soci.AnnotationIndexDigest: "sha256:old"}).(v1.Image), nil
})

// What has no SOCI index, or contradicts its digests, is refused, and nothing is published.
func TestSOCIRefuses(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(archive, reference(t, "tools/shell:1"), imageOf(t, layers(), nil)); err != nil {
		t.Fatal(err)
	}
	damaged := func(layer, at int) string {
		image := large(t)
		manifest, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		dir := stored(t, image)
		damage(t, dir, manifest.Layers[layer].Digest, at)
		return "oci:" + dir
	}
	wrongDiffID := func(layer int) string {
		image := large(t)
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config = config.DeepCopy()
		config.RootFS.DiffIDs[layer] = config.RootFS.DiffIDs[2]
		if image, err = mutate.ConfigFile(image, config); err != nil {
			t.Fatal(err)
		}
		return "oci:" + stored(t, image)
	}
	noTar, err := mutate.Append(large(t), mutate.Addendum{
		Layer: static.NewLayer([]byte(random(11<<20, 9)), types.OCILayer)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ source, want string }{
		"small layers":      {"oci:" + stored(t, imageOf(t, layers(), nil)), "no layer is gzip or a plain tar"},
		"a docker archive":  {"docker-archive:" + archive, "push the image to a registry first"},
		"gzip's header":     {damaged(0, 4), "with that of its name"},
		"damaged gzip":      {damaged(0, 0), "index layer 1 (sha256:"},
		"a damaged tar":     {damaged(1, 0), "with that of its name"},
		"a damaged zstd":    {damaged(2, 0), "index layer 3 (sha256:"},
		"a small layer":     {damaged(3, 512), "with that of its name"},
		"a diffID of gzip":  {wrongDiffID(0), "the config names sha256:"},
		"a diffID of plain": {wrongDiffID(1), "the config names sha256:"},
		"no tar":            {"oci:" + stored(t, noTar), "make a zTOC: uncompressed: read entry 0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, o := t.TempDir(), conversion.Options{Format: conversion.SOCI, Dir: t.TempDir()}
			_, err := convert(t.Context(), opened(t, c.source), "linux/amd64", "oci:"+dir, o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, ocispec.ImageIndexFile)); !os.IsNotExist(err) {
				t.Errorf("an image was published: %v", err)
			}
			if left := files(t, o.Dir); left != nil {
				t.Errorf("temporary files were left: %v", left)
			}
		})
	}
}

// The images of several platforms are in one index, before their SOCI indexes. A platform without
// large layers has no SOCI index.
func TestSOCIPlatforms(t *testing.T) {
	index := mutate.AppendManifests(empty.Index)
	for architecture, image := range map[string]v1.Image{"amd64": large(t), "arm64": imageOf(t, layers(),
		func(c *v1.ConfigFile) { c.Architecture = "arm64" })} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	dir := t.TempDir()
	done, err := convert(t.Context(), opened(t, "oci:"+stored(t, index)), "all", "oci:"+dir,
		conversion.Options{Format: conversion.SOCI})
	if err != nil {
		t.Fatal(err)
	}
	var list ocispec.Index
	if err := json.Unmarshal(inLayout(t, dir)(done.Digest), &list); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, d := range list.Manifests {
		kinds = append(kinds, d.ArtifactType)
	}
	if want := []string{"", "", soci.MediaTypeIndexV2}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("the manifests are of the types %q, want %q", kinds, want)
	}
	for _, image := range done.Images {
		if (image.Index != "") != (image.Platform == "linux/amd64") {
			t.Errorf("got %+v, want a SOCI index for amd64 only", image)
		}
		manifest := ocispec.Manifest{}
		if err := json.Unmarshal(inLayout(t, dir)(image.Digest), &manifest); err != nil {
			t.Fatal(err)
		}
		if manifest.Annotations[soci.AnnotationIndexDigest] != image.Index {
			t.Errorf("the manifest's annotations are %v, want index %q", manifest.Annotations, image.Index)
		}
	}
}
