package conversion_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/soci"
	"lighter/format/stargz"
	"lighter/store/conversion"
	"lighter/store/registry"
)

// formats are those of layers, as format/stargz has them.
var formats = map[conversion.Format]stargz.Format{
	conversion.EStargz: stargz.EStargz, conversion.ZstdChunked: stargz.StargzZstd}

// filesOf returns whole files.
func filesOf(paths ...string) (parts []soci.Part) {
	for _, p := range paths {
		parts = append(parts, soci.Part{Path: p})
	}
	return parts
}

// A converted image shows the same files, has the same config besides its diffIDs, and layers whose
// tables are found and match.
func TestConvert(t *testing.T) {
	image := imageOf(t, layers(), nil)
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(archive, name.MustParseReference("tools/shell:1"), image); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"oci:" + stored(t, image), "docker-archive:" + archive} {
		for format := range formats {
			for _, o := range []conversion.Options{
				{Format: format},
				{Format: format, Level: 1, Jobs: 3, Prioritized: filesOf("/usr/bin/first", "usr/hard", "no/such")},
			} {
				t.Run(fmt.Sprintf("%.3s %+v", source, o), func(t *testing.T) {
					o.Dir = t.TempDir()
					dir := filepath.Join(t.TempDir(), "new")
					done, got := converted(t, opened(t, source), dir, "", o)
					compareConfigs(t, got, image)
					compareLayers(t, done.Images[0], got, o)
					if left := append(files(t, o.Dir), slices.DeleteFunc(files(t, dir), func(path string) bool {
						return !strings.HasSuffix(path, ".new")
					})...); left != nil {
						t.Errorf("temporary files were left: %v", left)
					}
				})
			}
		}
	}
}

func compareConfigs(t *testing.T, got, want v1.Image) {
	t.Helper()
	a, err := got.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	b, err := want.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	x, y := decoded(t, a), decoded(t, b)
	delete(x["rootfs"].(map[string]any), "diff_ids")
	delete(y["rootfs"].(map[string]any), "diff_ids")
	if !reflect.DeepEqual(x, y) {
		t.Errorf("the config is\n%s, want\n%s", a, b)
	}
}

// compareLayers compares the layers with the original's, with the manifest, and with the result.
func compareLayers(t *testing.T, result conversion.Image, image v1.Image, o conversion.Options) {
	t.Helper()
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	all, err := image.Layers()
	if err != nil || len(all) != len(layers()) || len(result.Layers) != len(all) {
		t.Fatalf("got %d layers, %d in the result, %v, want %d", len(all), len(result.Layers), err, len(layers()))
	}
	var tars [][]byte
	for n, layer := range all {
		plain := tarOf(t, layer)
		tars = append(tars, plain)
		d := manifest.Layers[n]
		diffID, _, err := v1.SHA256(bytes.NewReader(plain))
		if err != nil || config.RootFS.DiffIDs[n] != diffID || result.Layers[n].DiffID != diffID.String() ||
			result.Layers[n].NewSize != d.Size || result.Layers[n].Digest != d.Digest.String() {
			t.Errorf("layer %d: diffID %s, %v, config %s, result %+v", n, diffID, err, config.RootFS.DiffIDs[n],
				result.Layers[n])
		}
		if got := d.Annotations["io.containers.estargz.uncompressed-size"]; got != strconv.Itoa(len(plain)) {
			t.Errorf("layer %d: the uncompressed size is %s, want %d", n, got, len(plain))
		}
		files := checkTable(t, layer, d, formats[o.Format])
		if want := slices.Contains(o.Prioritized, soci.Part{Path: "/usr/bin/first"}); n == 1 && (files > 0) != want {
			t.Errorf("layer %d: %d files come first, want some: %t", n, files, want)
		}
		if result.From == "" {
			continue // a docker archive has no annotations
		}
		if d.Annotations["org.example.layer"] != fmt.Sprint(n) || d.Annotations[stargz.ContainersPosition] != "" ||
			manifest.Annotations["org.example.image"] != "yes" || len(manifest.Annotations) != 1 {
			t.Errorf("annotations %v and %v, want those that are still true", d.Annotations, manifest.Annotations)
		}
	}
	if got, want := listing(t, tars), listing(t, layers()); got != want {
		t.Errorf("the new image shows\n%s, want\n%s", got, want)
	}
}

// checkTable reads the table of a layer, and all chunks. It returns how many files come first.
func checkTable(t *testing.T, layer v1.Layer, d v1.Descriptor, format stargz.Format) (first int) {
	t.Helper()
	stored, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(stored); err != nil {
		t.Fatal(err)
	}
	blob := b.Bytes()
	hash, size, err := v1.SHA256(bytes.NewReader(blob))
	if err != nil || hash != d.Digest || size != d.Size {
		t.Errorf("the layer is %s, %d bytes, %v, want %s, %d", hash, size, err, d.Digest, d.Size)
	}
	table, err := stargz.LocateByFooter(d.Annotations, d.Size, blob)
	if err != nil || table.Format != format || !table.Verifiable() {
		t.Fatalf("got table %+v, %v, want a %s that can be verified", table, err, format)
	}
	l, err := stargz.Decode(context.Background(), table, bytes.NewReader(blob[table.Offset:][:table.Length]))
	if err != nil {
		t.Fatal(err)
	}
	readChunks(t, l, blob)
	return len(l.Prefetch().Files)
}

// readChunks reads all chunks of a layer.
func readChunks(t *testing.T, l *stargz.Layer, blob []byte) {
	t.Helper()
	mapped, err := l.Map(chunk.Sum(blob), int64(len(blob)))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := mapped.Table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for n := range table.Units() {
		u, err := table.Unit(uint32(n))
		if err != nil {
			t.Fatal(err)
		}
		batch, err := u.Decode(blob[u.Offset:][:u.Stored])
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch.Len() {
			if _, err := batch.Chunk(i); err != nil {
				t.Error(err)
			}
		}
	}
}

// A layout keeps its other images, and the images of a name are replaced.
func TestLayoutsKeepOtherImages(t *testing.T) {
	from, dir := opened(t, "oci:"+stored(t, imageOf(t, layers(), nil))), t.TempDir()
	one, _ := converted(t, from, dir, "one", conversion.Options{Format: conversion.EStargz})
	two, _ := converted(t, from, dir, "two", conversion.Options{Format: conversion.ZstdChunked})
	again, _ := converted(t, from, dir, "one", conversion.Options{Format: conversion.ZstdChunked})
	if again.Digest != two.Digest || one.Digest == two.Digest {
		t.Errorf("got %s, then %s, want %s: the same input has to give the same bytes", one.Digest, again.Digest,
			two.Digest)
	}
	for _, tag := range []string{"one", "two"} {
		local, err := registry.OpenLocal("oci:" + dir + ":" + tag)
		if err != nil {
			t.Fatal(err)
		}
		if digest, err := local.Digest(); err != nil || digest != two.Digest {
			t.Errorf("%s: got %s, %v, want %s", tag, digest, err, two.Digest)
		}
	}
	// A converted image can be converted.
	from = opened(t, "oci:"+dir+":two")
	if _, image := converted(t, from, t.TempDir(), "", conversion.Options{Format: conversion.EStargz}); image == nil {
		t.Error("no image")
	}
}

// Of an index, the image for a platform is converted, or those for all. Attestations are left out.
func TestPlatforms(t *testing.T) {
	arm := imageOf(t, layers()[1:], func(c *v1.ConfigFile) { c.Architecture = "arm64" })
	amd, attestation := imageOf(t, layers(), nil), imageOf(t, layers()[:1], nil)
	index := mutate.AppendManifests(empty.Index)
	for _, add := range []struct {
		image    v1.Image
		platform v1.Platform
	}{{arm, v1.Platform{OS: "linux", Architecture: "arm64"}}, {amd, v1.Platform{OS: "linux", Architecture: "amd64"}},
		{attestation, v1.Platform{OS: "unknown", Architecture: "unknown"}}} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: add.image,
			Descriptor: v1.Descriptor{Platform: &add.platform}})
	}
	from := opened(t, "oci:"+stored(t, index))
	for platform, want := range map[string][]string{
		"linux/amd64": {"linux/amd64"}, "linux/arm64": {"linux/arm64"}, "all": {"linux/arm64", "linux/amd64"},
	} {
		done, err := convert(t.Context(), from, platform, "oci:"+t.TempDir(),
			conversion.Options{Format: conversion.EStargz})
		var got []string
		for _, image := range done.Images {
			got = append(got, image.Platform)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v, want %q", platform, got, err, want)
		}
		if isIndex := len(want) > 1; isIndex == (done.Digest == done.Images[0].Digest) {
			t.Errorf("%s: got %s, want an index: %t", platform, done.Digest, isIndex)
		}
	}
	dir := t.TempDir()
	_, err := convert(t.Context(), from, "all", "oci:"+dir, conversion.Options{Format: conversion.EStargz})
	if err != nil {
		t.Fatal(err)
	}
	if images, err := opened(t, "oci:"+dir).Originals("linux/arm64"); err != nil || len(images) != 1 ||
		len(images[0].Layers) != 3 {
		t.Errorf("the new index has %v for arm64, %v", images, err)
	}
	for _, platform := range []string{"linux/s390x", "no/such/platform/at/all"} {
		if _, err := from.Originals(platform); err == nil || !strings.Contains(err.Error(), platform) {
			t.Errorf("%s: got %v, want an error", platform, err)
		}
	}
}
