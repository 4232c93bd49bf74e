package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/registry"
)

// Reader reads manifests and configs of one repository: of the hub's registry, or of another one.
type Reader interface {
	// Manifest returns a manifest or index by its digest, or an error that wraps
	// registry.ErrNotFound.
	Manifest(ctx context.Context, digest string) (registry.Manifest, error)
	// Config returns the bytes of a config, whose digest it has checked.
	Config(ctx context.Context, d v1.Descriptor) ([]byte, error)
}

var _ Reader = registry.Repository{}

// Members are the manifest that a name points to and, if it is an index, everything below it.
type Members struct {
	Root      registry.Manifest
	Manifests []Member            // all manifests except indexes
	Indexes   []registry.Manifest // each before the indexes in it

	platforms []string // wanted ones
	offered   []string // platforms of all images, also of those whose manifests were not read
}

// Member is one manifest.
type Member struct {
	registry.Manifest
	Platform string // "" if unknown
	Wanted   bool   // an image for a wanted platform
	IsImage  bool
}

// Size returns the bytes of the config and the layers that the manifest names. It returns 0 if the
// manifest cannot be parsed.
func (m Member) Size() int64 {
	var parsed v1.Manifest
	if json.Unmarshal(m.Bytes, &parsed) != nil {
		return 0
	}
	size := max(parsed.Config.Size, 0)
	for _, layer := range parsed.Layers {
		size += max(layer.Size, 0)
	}
	return size
}

const (
	maxDescriptors = 1000     // in all indexes of a name
	maxExpanded    = 16 << 20 // bytes of a name's indexes, manifests and configs
	maxNesting     = 3        // levels of indexes, including the root
)

// attested is the annotation of an attestation in an index: the digest of the manifest that it is
// about.
const attested = "vnd.docker.reference.digest"

// unknownPlatform is the platform of attestations.
const unknownPlatform = "unknown/unknown"

// Expand reads the manifests below root. It omits manifests that r does not have. With an error it
// returns the members that were read before the error.
func Expand(ctx context.Context, r Reader, root registry.Manifest, platforms []string) (*Members, error) {
	e := newExpander(r, root, platforms)
	return e.Members, e.add(ctx, root, 0)
}

// ExpandWanted does what Expand does, but reads only the manifests for wanted platforms.
func ExpandWanted(ctx context.Context, r Reader, root registry.Manifest, platforms []string) (*Members, error) {
	e := newExpander(r, root, platforms)
	e.wantedOnly = true
	return e.Members, e.add(ctx, root, 0)
}

// HasWanted reports whether there is an image for a wanted platform.
func (m *Members) HasWanted() bool {
	return slices.ContainsFunc(m.Manifests, func(one Member) bool { return one.Wanted })
}

// CheckPlatforms returns an error if no image is for a wanted platform. It returns none if the root
// is a manifest of something else than an image.
func (m *Members) CheckPlatforms() error {
	wanted := strings.Join(m.platforms, ", ")
	switch {
	case m.HasWanted():
		return nil
	case len(m.offered) > 0:
		slices.Sort(m.offered)
		return fmt.Errorf("no image for %s; there is one for %s",
			wanted, strings.Join(slices.Compact(m.offered), ", "))
	case len(m.Indexes) > 0:
		return fmt.Errorf("no image for %s: index %s names no image, or the registry does not have its manifest",
			wanted, m.Root.Digest)
	}
	return nil // a manifest that is not an image
}

// Platforms returns the wanted platforms.
func (m *Members) Platforms() []string { return m.platforms }

// Find returns the manifest with that digest.
func (m *Members) Find(digest string) (registry.Manifest, bool) {
	for _, one := range m.Manifests {
		if one.Digest == digest {
			return one.Manifest, true
		}
	}
	return registry.Manifest{}, false
}

// expander fills Members. It reads each manifest once, even if several indexes name it.
type expander struct {
	*Members
	reader     Reader
	wantedOnly bool

	seen        map[string]int // positions in Manifests by digest; -1 for an index or a missing manifest
	descriptors int            // number of manifests that the indexes name
	bytes       int64          // of manifests and configs that were read
}

func newExpander(r Reader, root registry.Manifest, platforms []string) *expander {
	return &expander{Members: &Members{Root: root, platforms: platforms}, reader: r, seen: map[string]int{}}
}

// count counts the bytes of a manifest or config, and returns an error beyond maxExpanded.
func (e *expander) count(b []byte) error {
	if e.bytes += int64(len(b)); e.bytes > maxExpanded {
		return fmt.Errorf("manifests and configs together exceed the limit of %d bytes", maxExpanded)
	}
	return nil
}

func (e *expander) add(ctx context.Context, m registry.Manifest, depth int) error {
	if err := e.count(m.Bytes); err != nil {
		return err
	}
	if !isIndex(m.MediaType) {
		return e.addManifest(ctx, m, v1.Descriptor{})
	}
	if depth >= maxNesting {
		return fmt.Errorf("index %s: indexes are nested more than %d deep", m.Digest, maxNesting)
	}
	var index v1.Index
	if err := json.Unmarshal(m.Bytes, &index); err != nil {
		return fmt.Errorf("parse index %s: %w", m.Digest, err)
	}
	if e.descriptors += len(index.Manifests); e.descriptors > maxDescriptors {
		return fmt.Errorf("index %s: the indexes name more than %d manifests together", m.Digest, maxDescriptors)
	}
	e.seen[m.Digest] = -1
	e.Indexes = append(e.Indexes, m)
	// Images come first: ExpandWanted reads an attestation only if its image is wanted.
	for _, attestations := range []bool{false, true} {
		for _, d := range index.Manifests {
			if (d.Annotations[attested] != "") != attestations {
				continue
			}
			if err := e.addDescriptor(ctx, d, depth); err != nil {
				return fmt.Errorf("index %s: %w", m.Digest, err)
			}
		}
	}
	return nil
}

// addDescriptor adds the manifest that an index names.
func (e *expander) addDescriptor(ctx context.Context, d v1.Descriptor, depth int) error {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("manifest with digest %q: want sha256:…", d.Digest)
	}
	var platform string
	if d.Platform != nil {
		platform = PlatformName(*d.Platform)
	}
	if i, known := e.seen[d.Digest.String()]; known {
		// A manifest that is named for several platforms is wanted if one of them is.
		if i >= 0 && platform != "" && e.Manifests[i].IsImage {
			e.offer(platform)
			m := &e.Manifests[i]
			m.Wanted = m.Wanted || matches(platform, e.platforms)
		}
		return nil
	}
	if e.wantedOnly && !e.wantsDescriptor(d, platform) {
		e.offer(platform)
		return nil
	}
	m, err := e.reader.Manifest(ctx, d.Digest.String())
	if errors.Is(err, registry.ErrNotFound) {
		e.seen[d.Digest.String()] = -1 // an index may name manifests that the registry does not have
		return nil
	}
	if err != nil {
		return err
	}
	if isIndex(m.MediaType) {
		return e.add(ctx, m, depth+1)
	}
	if err := e.count(m.Bytes); err != nil {
		return err
	}
	return e.addManifest(ctx, m, d)
}

// wantsDescriptor reports whether d is for a wanted platform, or an attestation about a wanted
// image.
func (e *expander) wantsDescriptor(d v1.Descriptor, platform string) bool {
	about := d.Annotations[attested]
	if about == "" {
		return matches(platform, e.platforms)
	}
	return slices.ContainsFunc(e.Manifests, func(m Member) bool { return m.Wanted && m.Digest == about })
}

// offer notes a platform that has an image.
func (e *expander) offer(platform string) {
	if platform != "" && platform != unknownPlatform {
		e.offered = append(e.offered, platform)
	}
}

func (e *expander) addManifest(ctx context.Context, m registry.Manifest, d v1.Descriptor) error {
	one := Member{Manifest: m}
	if d.Platform != nil {
		one.Platform = PlatformName(*d.Platform)
	}
	e.seen[m.Digest] = len(e.Manifests)
	manifest, err := parseManifest(m)
	switch {
	case errors.As(err, new(*NotImageError)) || d.Annotations[attested] != "" || one.Platform == unknownPlatform:
		if one.Platform == unknownPlatform {
			one.Platform = ""
		}
		e.Manifests = append(e.Manifests, one)
		return nil
	case err != nil:
		return err
	case one.Platform == "":
		if one.Platform, err = e.configPlatform(ctx, manifest.Config); err != nil {
			return err
		}
	}
	e.offer(one.Platform)
	one.IsImage = true
	one.Wanted = matches(one.Platform, e.platforms)
	e.Manifests = append(e.Manifests, one)
	return nil
}

// configPlatform reads the platform from a config. If the config cannot be parsed, it returns "".
// Ingestion reports the error.
func (e *expander) configPlatform(ctx context.Context, d v1.Descriptor) (string, error) {
	b, err := e.reader.Config(ctx, d)
	if err == nil {
		err = e.count(b)
	}
	if err != nil {
		return "", err
	}
	var c v1.Image
	if json.Unmarshal(b, &c) != nil {
		return "", nil
	}
	return PlatformName(c.Platform), nil
}
