package ingest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

// Media types of manifests and configs; those of OCI are in the v1 package.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// manifestTypes are the types of what a name can point to.
var manifestTypes = []string{v1.MediaTypeImageIndex, dockerList, v1.MediaTypeImageManifest, dockerManifest}

const (
	maxConfig = 8 << 20 // bytes
	maxLayers = 1000    // of an image
	maxBlob   = 1 << 50 // bytes; whatever the limits are, sizes can be added
)

// notImageError says that a manifest is none that can be run, which is no
// fault of it.
type notImageError struct{ why string }

func (e *notImageError) Error() string { return "not an image that can be run: " + e.why }

// image is what manifest and config say of an image.
type image struct {
	config   v1.Descriptor
	layers   []layer
	platform string
}

// layer is one layer of an image.
type layer struct {
	Digest    string // of the blob
	MediaType string
	Size      int64 // of the blob, bytes
	DiffID    string
	Chain     string
	n, of     int // it is the n-th, from 1, of so many
}

// name says in messages which layer is meant.
func (l *layer) name() string { return fmt.Sprintf("layer %d of %d (%s)", l.n, l.of, l.Digest) }

// size is that of all blobs, in bytes.
func (i *image) size() int64 {
	size := i.config.Size
	for _, l := range i.layers {
		size += l.Size
	}
	return size
}

// parseManifest reads a manifest and checks that it is one of an image, as far
// as can be told without its config.
func parseManifest(m registry.Manifest) (*v1.Manifest, error) {
	if m.MediaType != v1.MediaTypeImageManifest && m.MediaType != dockerManifest {
		return nil, &notImageError{"a manifest of type " + m.MediaType}
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(m.Bytes, &manifest); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
	}
	if manifest.ArtifactType != "" {
		return nil, &notImageError{"an artifact of type " + manifest.ArtifactType}
	}
	if t := manifest.Config.MediaType; t != v1.MediaTypeImageConfig && t != dockerConfig {
		return nil, &notImageError{"its config is of type " + t}
	}
	for _, d := range append(slices.Clone(manifest.Layers), manifest.Config) {
		if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 || d.Size < 0 || d.Size > maxBlob {
			return nil, fmt.Errorf("manifest %s: a blob has digest %q and size %d: want sha256 and a length", m.Digest, d.Digest, d.Size)
		}
	}
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("manifest %s: %d layers are more than the limit of %d", m.Digest, len(manifest.Layers), maxLayers)
	}
	if manifest.Config.Size > maxConfig {
		return nil, fmt.Errorf("manifest %s: a config of %d bytes is beyond the limit of %d", m.Digest, manifest.Config.Size, maxConfig)
	}
	return &manifest, nil
}

// parseImage puts manifest and config together.
func parseImage(manifest *v1.Manifest, config []byte) (*image, error) {
	var c v1.Image
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("config %s: %w", manifest.Config.Digest, err)
	}
	i := &image{config: manifest.Config, platform: platformName(c.Platform)}
	if err := checkLayerTypes(manifest, c.OS); err != nil {
		return nil, err
	}
	if len(manifest.Layers) == 0 {
		return nil, fmt.Errorf("manifest has no layers: nothing can be run from it")
	}
	if len(c.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("config %s names %d diffIDs, the manifest %d layers", manifest.Config.Digest, len(c.RootFS.DiffIDs), len(manifest.Layers))
	}
	chains := identity.ChainIDs(slices.Clone(c.RootFS.DiffIDs))
	for n, d := range manifest.Layers {
		diffID := c.RootFS.DiffIDs[n]
		if err := diffID.Validate(); err != nil || diffID.Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("config %s: %q is not a diffID", manifest.Config.Digest, diffID)
		}
		i.layers = append(i.layers, layer{Digest: d.Digest.String(), MediaType: d.MediaType, Size: d.Size,
			DiffID: diffID.String(), Chain: chains[n].String(), n: n + 1, of: len(manifest.Layers)})
	}
	return i, nil
}

// checkLayerTypes refuses layers of unknown kinds, unless nothing about the
// manifest says that it is an image: signatures look like images at first.
func checkLayerTypes(manifest *v1.Manifest, os string) error {
	layers := 0
	for n, d := range manifest.Layers {
		l := layer{Digest: d.Digest.String(), n: n + 1, of: len(manifest.Layers)}
		switch compressionOf(d.MediaType) {
		case foreign:
			return fmt.Errorf("%s: its media type %s says that it must not be copied", l.name(), d.MediaType)
		case plain, compressed:
			layers++
		case notALayer:
			if os == "" && layers == 0 {
				return &notImageError{"its config names no system, and its blobs are of type " + d.MediaType}
			}
			return fmt.Errorf("%s: its media type %q is unknown", l.name(), d.MediaType)
		}
	}
	return nil
}

// platformName writes os/arch[/variant], or nothing if the platform is not said.
func platformName(p v1.Platform) string {
	if p.OS == "" && p.Architecture == "" {
		return ""
	}
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}

// matches tells whether a platform is one of those wanted, as containerd compares
// them: linux/arm64 is linux/arm64/v8. What is not said matches any.
func matches(platform string, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(want string) bool {
		return platform == "" || normalized(platform) == normalized(want)
	})
}

func normalized(platform string) string {
	parts := append(strings.SplitN(platform, "/", 3), "", "")
	return platformName(platforms.Normalize(v1.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}))
}

// hexOf returns the digits of a digest.
func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }
