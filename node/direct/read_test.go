package direct

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
)

// Whatever a registry sends as a manifest and its config, the image has as many layers as diffIDs,
// and a bounded number. Anything else is pulled as usual. At most the config is fetched.
func FuzzParseImage(f *testing.F) {
	layer := v1.Descriptor{MediaType: v1.MediaTypeImageLayerGzip, Digest: digest.FromString("layer"), Size: 5}
	add := func(layers []v1.Descriptor, diffIDs ...digest.Digest) {
		m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Layers: layers, Annotations: map[string]string{"a": "b"},
			Config: v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromString("config"), Size: 6}}
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		config, err := json.Marshal(v1.Image{Config: v1.ImageConfig{Entrypoint: []string{"/bin/sh"}},
			RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, config)
	}
	id := digest.FromString("diffID")
	add([]v1.Descriptor{layer}, id)
	add([]v1.Descriptor{layer, layer}, id, digest.SHA512.FromString("diffID"))
	add([]v1.Descriptor{{Digest: "sha256:../../etc", Size: -1}}, id)
	add([]v1.Descriptor{layer}, "sha256:../../etc")
	add([]v1.Descriptor{layer}, id, id)
	add(nil)
	f.Add([]byte(`{"config": null, "layers": [null]}`), []byte(`{"rootfs": {"diff_ids": [null]}}`))
	f.Add([]byte(`{"layers": [{}]}`), []byte(`null`))
	f.Add([]byte(`[]`), []byte(`{}`))
	f.Add([]byte(`{"layers": [{}]}`), []byte(`[`))
	broken := errors.New("the connection broke")
	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		which := digest.FromBytes(manifest)
		fetched := 0
		im, err := parseImage(which, manifest, func(d v1.Descriptor) ([]byte, error) {
			var m v1.Manifest
			err := json.Unmarshal(manifest, &m)
			if err != nil || d.Digest != m.Config.Digest || d.Size != m.Config.Size {
				t.Errorf("blob %q of %d bytes is fetched", d.Digest, d.Size)
			}
			fetched++
			return config, nil
		})
		_, failed := parseImage(which, manifest, func(v1.Descriptor) ([]byte, error) { return nil, broken })
		if fetched > 1 || (fetched == 1) != errors.Is(failed, broken) {
			t.Errorf("the config is fetched %d times; if that fails: %v", fetched, failed)
		}
		if err != nil {
			if im != nil || !errors.As(err, new(notDirect)) || !errors.Is(err, chunk.ErrNotFound) {
				t.Errorf("got %+v, %v, want that the image is pulled as usual", im, err)
			}
			return
		}
		if n := len(im.layers); fetched != 1 || n == 0 || n > maxLayers || n != len(im.diffIDs) || im.digest != which ||
			im.check() != nil {
			t.Errorf("%d layers, %d diffIDs, digest %s", n, len(im.diffIDs), im.digest)
		}
		for i, d := range im.layers {
			if im.diffIDs[i].Validate() != nil {
				t.Errorf("diffID %d is %q", i, im.diffIDs[i])
			}
			if pack, err := packOf(d); err == nil && d.Digest.Encoded() != pack.String() {
				t.Errorf("layer %q is pack %s", d.Digest, pack)
			}
		}
		if chain := identity.ChainID(im.diffIDs); chain.Validate() != nil {
			t.Errorf("the chain is %q", chain)
		}
	})
}
