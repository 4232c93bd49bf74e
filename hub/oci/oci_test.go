package oci

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

// Platforms match as in containerd. An unknown platform matches.
func TestPlatformsMatch(t *testing.T) {
	for _, c := range []struct {
		platform, wanted string
		want             bool
	}{
		{"linux/amd64", "linux/amd64", true}, {"linux/arm64/v8", "linux/arm64", true},
		{"linux/arm64", "linux/arm64/v8", true},
		{"linux/arm/v7", "linux/arm", true}, {"linux/arm/v6", "linux/arm", false},
		{"linux/amd64/v3", "linux/amd64", false}, {"", "linux/amd64", true},
		{"linux/amd64", "linux/arm64", false}, {"windows/amd64", "linux/amd64", false},
		{"linux/arm/v6", "linux/arm/v7", false},
		{"linux/arm64", "linux/arm", false}, {unknownPlatform, "linux/amd64", false},
	} {
		if got := matches(c.platform, []string{"plan9/mips", c.wanted}); got != c.want {
			t.Errorf("platform %q matches %q: %v, want %v", c.platform, c.wanted, got, c.want)
		}
	}
}

// manifests is a Reader with some manifests. It counts how often each is read.
type manifests struct {
	byDigest map[string]registry.Manifest
	reads    map[string]int
}

func (m *manifests) Manifest(_ context.Context, digest string) (registry.Manifest, error) {
	m.reads[digest]++
	if found, ok := m.byDigest[digest]; ok {
		return found, nil
	}
	return registry.Manifest{}, registry.ErrNotFound
}

func (m *manifests) Config(context.Context, v1.Descriptor) ([]byte, error) { return []byte("{}"), nil }

// put adds a manifest and returns its descriptor.
func (m *manifests) put(t *testing.T, mediaType string, content any) v1.Descriptor {
	t.Helper()
	b, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
	m.byDigest[d.Digest.String()] = registry.Manifest{MediaType: mediaType, Digest: d.Digest.String(), Bytes: b}
	return d
}

// The error about missing platforms lists only images that exist.
func TestCheckPlatforms(t *testing.T) {
	r := &manifests{map[string]registry.Manifest{}, map[string]int{}}
	blob := func(mediaType, content string) v1.Descriptor {
		return v1.Descriptor{MediaType: mediaType, Digest: digest.FromString(content), Size: int64(len(content))}
	}
	on := func(d v1.Descriptor, architecture string) v1.Descriptor {
		d.Platform = &v1.Platform{OS: "linux", Architecture: architecture}
		return d
	}
	image := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: blob(v1.MediaTypeImageConfig, "config"),
		Layers: []v1.Descriptor{blob(v1.MediaTypeImageLayer, "layer")}}
	image.SchemaVersion = 2
	existing := r.put(t, v1.MediaTypeImageManifest, image)
	missing := blob(v1.MediaTypeImageManifest, "missing")
	for name, c := range map[string]struct {
		index []v1.Descriptor
		want  string // empty: no error
	}{
		"wanted":           {[]v1.Descriptor{on(existing, "amd64")}, ""},
		"wanted under two": {[]v1.Descriptor{on(existing, "arm64"), on(existing, "amd64")}, ""},
		"another platform": {[]v1.Descriptor{on(existing, "arm64")}, "there is one for linux/arm64"},
		"another platform, sparse": {[]v1.Descriptor{on(missing, "amd64"), on(existing, "arm64")},
			"there is one for linux/arm64"},
		"sparse": {[]v1.Descriptor{on(missing, "amd64")}, "does not have its manifest"},
		"sparse, named twice": {[]v1.Descriptor{on(missing, "amd64"), on(missing, "arm64")},
			"does not have its manifest"},
		"empty": {nil, "does not have its manifest"},
	} {
		clear(r.reads)
		index := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: c.index}
		index.SchemaVersion = 2
		root := r.byDigest[r.put(t, v1.MediaTypeImageIndex, index).Digest.String()]
		members, err := Expand(t.Context(), r, root, []string{"linux/amd64"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		err = members.CheckPlatforms()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
		for digest, n := range r.reads {
			if n != 1 {
				t.Errorf("%s: manifest %s was read %d times, want once", name, digest, n)
			}
		}
	}
}

// Any manifest and config give an image within the limits, or an error.
func FuzzParseImage(f *testing.F) {
	digest := func(of string) string { return "sha256:" + strings.Repeat(of, 64) }
	f.Add(`{"schemaVersion":2,`+
		`"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"`+digest("a")+`","size":2},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"`+digest("b")+`","size":1}]}`,
		`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["`+digest("c")+`"]}}`)
	f.Fuzz(func(t *testing.T, manifest, config string) {
		m, err := parseManifest(registry.Manifest{MediaType: v1.MediaTypeImageManifest, Bytes: []byte(manifest)})
		if err != nil {
			return
		}
		i, err := parseImage(m, []byte(config))
		if err != nil {
			return
		}
		if len(i.Layers) == 0 || len(i.Layers) > maxLayers || i.Size() < 0 {
			t.Errorf("%d layers, %d bytes, want 1 to %d layers", len(i.Layers), i.Size(), maxLayers)
		}
		for _, l := range i.Layers {
			if len(l.DiffID) != 71 || len(l.Digest) != 71 || l.Chain == "" {
				t.Errorf("layer %+v, want two SHA-256 digests and a chain", l)
			}
		}
	})
}
