package oci

import (
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

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
			t.Errorf("%q for %q: %v", c.platform, c.wanted, got)
		}
	}
}

// Whatever comes as manifest and config, it is an image or an error.
func FuzzParseImage(f *testing.F) {
	f.Add(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:`+strings.Repeat("a", 64)+`","size":2},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:`+strings.Repeat("b",
		64)+`","size":1}]}`,
		`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:`+strings.Repeat("c",
			64)+`"]}}`)
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
			t.Errorf("%d layers, %d bytes", len(i.Layers), i.Size())
		}
		for _, l := range i.Layers {
			if len(l.DiffID) != 71 || len(l.Digest) != 71 || l.Chain == "" {
				t.Errorf("layer %+v", l)
			}
		}
	})
}
