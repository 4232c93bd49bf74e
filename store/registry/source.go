package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// AllPlatforms is the platform of Originals that means all of them.
const AllPlatforms = "all"

// Source is where images are read from as they are stored: a name in a registry, or a Local. It may
// have an image for each of several platforms.
type Source struct {
	Name string // for messages

	local  Local
	digest v1.Hash // of the image, or of the index; zero: an archive, which has no digests
}

// FindSource finds an image in its registry as Find does, with all its platforms.
func FindSource(ctx context.Context, ref string, plainHTTP bool) (*Source, error) {
	parsed, err := parse(ref, plainHTTP)
	if err != nil {
		return nil, err
	}
	options := remoteOptions(ctx, onlyAllowed{plainHTTP, sourcePlainHTTP, remote.DefaultTransport})
	found, err := remote.Get(parsed, options...)
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", parsed.Name(), err)
	}
	s := &Source{Name: parsed.Name(), digest: found.Digest}
	if found.MediaType.IsIndex() {
		s.local.index, err = found.ImageIndex()
	} else {
		s.local.image, err = found.Image()
	}
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", s.Name, err)
	}
	return s, nil
}

// Source returns the image as a source.
func (l *Local) Source() *Source { return &Source{Name: l.from, local: *l, digest: l.stored} }

// Original is an image of one platform, as it is stored. Its manifest and its config match their
// digests. Original has no digests of a docker archive.
type Original struct {
	Platform    ocispec.Platform
	Digest      string // of the manifest; "": none
	Annotations map[string]string
	Config      []byte
	DiffIDs     []string
	Layers      []ocispec.Descriptor // a layer without a digest is plain

	layers []v1.Layer
}

// CheckPlatform returns an error if Originals knows no such platform.
func CheckPlatform(platform string) error {
	if platform == "" || platform == AllPlatforms {
		return nil
	}
	_, err := platforms.Parse(platform)
	return err
}

// Originals returns the image for platform (OS/ARCH[/VARIANT]; empty: this machine's), or the
// images for all platforms. It returns one image if the source is no index, which has to be for the
// platform if one is named.
func (s *Source) Originals(platform string) ([]*Original, error) {
	all, err := s.originals(platform)
	if err != nil {
		return nil, fmt.Errorf("read image %s: %w", s.Name, err)
	}
	return all, nil
}

func (s *Source) originals(platform string) (all []*Original, err error) {
	if err := CheckPlatform(platform); err != nil {
		return nil, err
	}
	isNamed, want := platform != "" && platform != AllPlatforms, platforms.DefaultSpec()
	if isNamed {
		want = platforms.MustParse(platform)
	}
	if s.local.image != nil {
		o, err := original(s.local.image, s.digest)
		if err == nil && isNamed && !platforms.Only(want).Match(o.Platform) {
			err = fmt.Errorf("it is for %s, not for %s", platforms.Format(o.Platform), platform)
		}
		return []*Original{o}, err
	}
	manifests, err := s.manifests()
	if err != nil {
		return nil, err
	}
	if platform != AllPlatforms {
		if manifests, err = best(manifests, want); err != nil {
			return nil, err
		}
	}
	for _, d := range manifests {
		digest := v1.Hash{Algorithm: d.Digest.Algorithm().String(), Hex: d.Digest.Encoded()}
		image, err := s.local.index.Image(digest)
		if err != nil {
			return nil, err
		}
		o, err := original(image, digest)
		if err != nil {
			return nil, err
		}
		o.Platform = *d.Platform
		all = append(all, o)
	}
	return all, nil
}

// manifests returns the images of the index that have a platform. Others are attestations, and
// artifacts such as SOCI's indexes, which have the platform of their image.
func (s *Source) manifests() (found []ocispec.Descriptor, err error) {
	raw, err := s.local.index.RawManifest()
	if err != nil {
		return nil, err
	}
	if err := verify(raw, s.digest); err != nil {
		return nil, fmt.Errorf("its index: %w", err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("its index: %w", err)
	}
	for _, d := range index.Manifests {
		isImage := d.ArtifactType == "" || types.MediaType(d.ArtifactType).IsConfig()
		if p := d.Platform; p != nil && p.OS != "unknown" && isImage && d.Digest.Validate() == nil {
			found = append(found, d)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("its index has no image for any platform")
	}
	return found, nil
}

// best returns the image that fits a platform best.
func best(manifests []ocispec.Descriptor, want ocispec.Platform) ([]ocispec.Descriptor, error) {
	match, has := platforms.Only(want), []string{}
	var found []ocispec.Descriptor
	for _, d := range manifests {
		has = append(has, platforms.Format(*d.Platform))
		if match.Match(*d.Platform) && (found == nil || match.Less(*d.Platform, *found[0].Platform)) {
			found = []ocispec.Descriptor{d}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("it has no image for %s; it has: %s", platforms.Format(want), strings.Join(has, " "))
	}
	return found, nil
}

// original reads the manifest and the config of an image. Without a digest, the image is that of an
// archive, of which the library would make compressed layers.
func original(image v1.Image, digest v1.Hash) (o *Original, err error) {
	o = &Original{}
	if o.Config, err = image.RawConfigFile(); err != nil {
		return nil, fmt.Errorf("its config: %w", err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(o.Config, &config); err != nil {
		return nil, fmt.Errorf("its config: %w", err)
	}
	o.Platform = config.Platform
	for _, d := range config.RootFS.DiffIDs {
		o.DiffIDs = append(o.DiffIDs, d.String())
	}
	if digest == (v1.Hash{}) {
		if o.layers, err = image.Layers(); err == nil {
			o.Layers = make([]ocispec.Descriptor, len(o.layers))
		}
	} else {
		err = o.manifest(image, digest)
	}
	if err == nil && len(o.Layers) != len(o.DiffIDs) {
		err = fmt.Errorf("it has %d layers, and its config names %d", len(o.Layers), len(o.DiffIDs))
	}
	return o, err
}

func (o *Original) manifest(image v1.Image, digest v1.Hash) error {
	raw, err := image.RawManifest()
	if err == nil {
		err = verify(raw, digest)
	}
	var manifest ocispec.Manifest
	if err == nil {
		err = json.Unmarshal(raw, &manifest)
	}
	if err != nil {
		return fmt.Errorf("its manifest: %w", err)
	}
	hash, err := v1.NewHash(manifest.Config.Digest.String())
	if err == nil {
		err = verify(o.Config, hash)
	}
	if err != nil {
		return fmt.Errorf("its config: %w", err)
	}
	o.Digest, o.Annotations, o.Layers = digest.String(), manifest.Annotations, manifest.Layers
	for n, d := range o.Layers {
		var layer v1.Layer
		hash, err := v1.NewHash(d.Digest.String())
		if err == nil {
			layer, err = image.LayerByDigest(hash)
		}
		if err != nil {
			return fmt.Errorf("its layer %d: %w", n+1, err)
		}
		o.layers = append(o.layers, layer)
	}
	return nil
}

// verify compares bytes with their digest.
func verify(b []byte, want v1.Hash) error {
	if sum := sha256.Sum256(b); want.Algorithm != "sha256" || want.Hex != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("its %d bytes do not have the digest %s", len(b), want)
	}
	return nil
}

// Open opens a layer as it is stored. The caller compares the digests.
func (o *Original) Open(layer int) (io.ReadCloser, error) {
	if o.Digest == "" {
		return o.layers[layer].Uncompressed()
	}
	return o.layers[layer].Compressed()
}

// parse parses the name of an image in a registry.
func parse(ref string, plainHTTP bool) (name.Reference, error) {
	var options []name.Option
	if plainHTTP {
		options = append(options, name.Insecure)
	}
	parsed, err := name.ParseReference(ref, options...)
	if err != nil {
		return nil, fmt.Errorf("%q is %w: %w", ref, ErrNoImage, err)
	}
	return parsed, nil
}
