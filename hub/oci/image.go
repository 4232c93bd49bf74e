// Package oci reads OCI and Docker manifests, indexes and configs. It checks that a manifest is an
// image that a container can run, within fixed bounds, and picks the images of an index by
// platform.
//
// It fetches nothing itself: a Reader does, from the hub's registry or another one.
package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

const (
	maxLayers = 1000    // layers of an image
	maxBlob   = 1 << 50 // bytes of a blob, so that sums of sizes do not overflow
)

// NotImageError says that a manifest, for example a signature, does not describe an image that a
// container can run. Such a manifest is stored and served.
type NotImageError struct{ Why string }

func (e *NotImageError) Error() string { return "not an image that a container can run: " + e.Why }

// Image is what a manifest and its config say of an image.
type Image struct {
	Config   v1.Descriptor
	Run      v1.ImageConfig // the configuration with which its containers run
	Layers   []Layer        // the lowest first
	Platform string         // in the form of PlatformName
}

// Layer is one layer of an image.
type Layer struct {
	Digest    string // of the blob
	MediaType string
	Size      int64 // of the blob, bytes
	DiffID    string
	Chain     string // the chainID of this layer on those below
	Number    int    // from 1
	Of        int    // the image's number of layers
}

// String names the layer in messages.
func (l *Layer) String() string { return fmt.Sprintf("layer %d of %d (%s)", l.Number, l.Of, l.Digest) }

// Size returns the size of all blobs in bytes.
func (i *Image) Size() int64 {
	size := i.Config.Size
	for _, l := range i.Layers {
		size += l.Size
	}
	return size
}

// parseManifest reads a manifest and checks all that does not need its config. The error is a
// *NotImageError if the manifest is valid, but not an image.
func parseManifest(m registry.Manifest) (*v1.Manifest, error) {
	if m.MediaType != v1.MediaTypeImageManifest && m.MediaType != dockerManifest {
		return nil, &NotImageError{"its media type is " + m.MediaType}
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(m.Bytes, &manifest); err != nil {
		return nil, fmt.Errorf("parse manifest %s: %w", m.Digest, err)
	}
	if manifest.ArtifactType != "" {
		return nil, &NotImageError{"it is an artifact of type " + manifest.ArtifactType}
	}
	if t := manifest.Config.MediaType; t != v1.MediaTypeImageConfig && t != dockerConfig {
		return nil, &NotImageError{"the media type of its config is " + t}
	}
	for _, d := range append(slices.Clone(manifest.Layers), manifest.Config) {
		if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 ||
			d.Size < 0 || d.Size > maxBlob {
			return nil, fmt.Errorf("manifest %s: blob with digest %q and size %d: want sha256 and a valid size",
				m.Digest, d.Digest, d.Size)
		}
	}
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("manifest %s: %d layers, the limit is %d", m.Digest, len(manifest.Layers), maxLayers)
	}
	if manifest.Config.Size > registry.MaxConfig {
		return nil, fmt.Errorf("manifest %s: config of %d bytes, the limit is %d",
			m.Digest, manifest.Config.Size, registry.MaxConfig)
	}
	return &manifest, nil
}

// parseImage combines a manifest and its config. The error is a *NotImageError if they are valid,
// but not an image.
func parseImage(manifest *v1.Manifest, config []byte) (*Image, error) {
	var c v1.Image
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("parse config %s: %w", manifest.Config.Digest, err)
	}
	i := &Image{Config: manifest.Config, Run: c.Config, Platform: PlatformName(c.Platform)}
	if err := checkLayerTypes(manifest, c.OS); err != nil {
		return nil, err
	}
	if len(manifest.Layers) == 0 {
		return nil, fmt.Errorf("the manifest has no layers")
	}
	if len(c.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("config %s has %d diffIDs, the manifest has %d layers",
			manifest.Config.Digest, len(c.RootFS.DiffIDs), len(manifest.Layers))
	}
	chains := identity.ChainIDs(slices.Clone(c.RootFS.DiffIDs))
	for n, d := range manifest.Layers {
		diffID := c.RootFS.DiffIDs[n]
		if err := diffID.Validate(); err != nil || diffID.Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("config %s: %q is not a diffID", manifest.Config.Digest, diffID)
		}
		i.Layers = append(i.Layers, Layer{Digest: d.Digest.String(), MediaType: d.MediaType, Size: d.Size,
			DiffID: diffID.String(), Chain: chains[n].String(), Number: n + 1, Of: len(manifest.Layers)})
	}
	return i, nil
}

// Read reads the manifest and the config of an image. The error is a *NotImageError if they are
// valid, but not an image.
func Read(ctx context.Context, from Reader, digest string) (*Image, error) {
	m, err := from.Manifest(ctx, digest)
	if errors.Is(err, registry.ErrNotFound) {
		err = fmt.Errorf("%w (it was deleted, or its copy ended early); add or push it again", err)
	}
	if err != nil {
		return nil, err
	}
	manifest, err := parseManifest(m)
	if err != nil {
		return nil, err
	}
	config, err := from.Config(ctx, manifest.Config)
	if err != nil {
		return nil, fmt.Errorf("read the config: %w", err)
	}
	return parseImage(manifest, config)
}

// checkLayerTypes refuses layers of unknown or foreign media types. For an unknown media type, the
// error is a *NotImageError if the config names no OS and no earlier blob is a layer. An example is
// a signature: its manifest and config have the media types of an image.
func checkLayerTypes(manifest *v1.Manifest, os string) error {
	layers := 0
	for n, d := range manifest.Layers {
		l := Layer{Digest: d.Digest.String(), Number: n + 1, Of: len(manifest.Layers)}
		switch KindOf(d.MediaType) {
		case Foreign:
			return fmt.Errorf("%s: layers of media type %s must not be copied", &l, d.MediaType)
		case Tar, CompressedTar:
			layers++
		case NotALayer:
			if os == "" && layers == 0 {
				return &NotImageError{"its config names no OS, and the media type of its blobs is " + d.MediaType}
			}
			return fmt.Errorf("%s: unknown media type %q", &l, d.MediaType)
		}
	}
	return nil
}
