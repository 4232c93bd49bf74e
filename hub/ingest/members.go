package ingest

import (
	"cmp"
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

// manifests is where manifests and configs are read: the hub's registry, or a
// source.
type manifests interface {
	Manifest(ctx context.Context, digest string) (registry.Manifest, error)
	Config(ctx context.Context, d v1.Descriptor) ([]byte, error)
}

// member is one manifest of what a name points to.
type member struct {
	registry.Manifest
	platform string
	runs     bool   // it is an image
	wanted   bool   // to be taken in
	about    string // digest of the manifest that an attestation is about
}

// What is read for one name is bounded, however its indexes are nested.
const (
	maxDescriptors = 1000     // in all its indexes
	maxExpanded    = 16 << 20 // bytes of its indexes, manifests and configs
	maxNesting     = 3        // of indexes in indexes
)

// attested is the annotation by which an attestation in an index says what it
// is about.
const attested = "vnd.docker.reference.digest"

// unknownPlatform is what attestations in an index have.
const unknownPlatform = "unknown/unknown"

// expander finds the members of what a name points to. It reads each manifest
// once, wherever it is named.
type expander struct {
	from      manifests
	platforms []string // wanted ones
	members   []member
	offered   []string // platforms that there are
	indexes   []registry.Manifest

	seen        map[string]int // manifests that were read, by digest: places in members, -1 for an index
	descriptors int            // that indexes hold
	bytes       int64          // that were read
}

// count counts what was read.
func (e *expander) count(b []byte) error {
	if e.bytes += int64(len(b)); e.bytes > maxExpanded {
		return fmt.Errorf("its manifests are longer than the limit of %d bytes", maxExpanded)
	}
	return nil
}

func (e *expander) add(ctx context.Context, m registry.Manifest, depth int) error {
	if err := e.count(m.Bytes); err != nil {
		return err
	}
	if m.MediaType != v1.MediaTypeImageIndex && m.MediaType != dockerList {
		return e.addManifest(ctx, m, v1.Descriptor{})
	}
	if depth >= maxNesting {
		return fmt.Errorf("index %s: indexes in indexes in indexes", m.Digest)
	}
	var index v1.Index
	if err := json.Unmarshal(m.Bytes, &index); err != nil {
		return fmt.Errorf("index %s: %w", m.Digest, err)
	}
	if e.descriptors += len(index.Manifests); e.descriptors > maxDescriptors {
		return fmt.Errorf("index %s: more than the limit of %d manifests", m.Digest, maxDescriptors)
	}
	e.seen[m.Digest] = -1
	e.indexes = append(e.indexes, m)
	// What attestations are about comes first: it decides whether they are wanted.
	slices.SortStableFunc(index.Manifests, func(a, b v1.Descriptor) int {
		return cmp.Compare(min(len(a.Annotations[attested]), 1), min(len(b.Annotations[attested]), 1))
	})
	for _, d := range index.Manifests {
		if err := e.addDescriptor(ctx, d, depth); err != nil {
			return fmt.Errorf("index %s: %w", m.Digest, err)
		}
	}
	return nil
}

// addDescriptor adds what an index names, unless it is elsewhere and nobody
// wants it.
func (e *expander) addDescriptor(ctx context.Context, d v1.Descriptor, depth int) error {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("it names a manifest %q: want sha256:…", d.Digest)
	}
	var platform string
	if d.Platform != nil {
		platform = platformName(*d.Platform)
	}
	if platform != unknownPlatform {
		e.offer(platform)
	}
	if i, known := e.seen[d.Digest.String()]; known {
		// The same for another platform is wanted if it is for any.
		if i >= 0 && platform != "" {
			m := &e.members[i]
			m.wanted = m.wanted || m.runs && matches(platform, e.platforms)
		}
		return nil
	}
	if _, remote := e.from.(*source); remote {
		if about := d.Annotations[attested]; about != "" && !e.wants(about) || about == "" && !matches(platform, e.platforms) {
			return nil
		}
	}
	m, err := e.from.Manifest(ctx, d.Digest.String())
	if errors.Is(err, registry.ErrNotFound) {
		return nil // an index may name what is not here
	}
	if err != nil {
		return err
	}
	if m.MediaType == v1.MediaTypeImageIndex || m.MediaType == dockerList {
		return e.add(ctx, m, depth+1)
	}
	if err := e.count(m.Bytes); err != nil {
		return err
	}
	return e.addManifest(ctx, m, d)
}

// offer notes a platform that there is.
func (e *expander) offer(platform string) {
	if platform != "" {
		e.offered = append(e.offered, platform)
	}
}

func (e *expander) addManifest(ctx context.Context, m registry.Manifest, d v1.Descriptor) error {
	one := member{Manifest: m, about: d.Annotations[attested]}
	if d.Platform != nil {
		one.platform = platformName(*d.Platform)
	}
	e.seen[m.Digest] = len(e.members)
	manifest, err := parseManifest(m)
	var notImage *notImageError
	switch {
	case errors.As(err, &notImage) || one.about != "" || one.platform == unknownPlatform:
		one.platform = strings.TrimPrefix(one.platform, unknownPlatform)
		e.members = append(e.members, one)
		return nil
	case err != nil:
		return err
	case one.platform == "":
		// A config that cannot be read is the ingestion's to complain about.
		if one.platform, err = e.configPlatform(ctx, manifest.Config); err != nil {
			return err
		}
		e.offer(one.platform)
	}
	one.runs = true
	one.wanted = matches(one.platform, e.platforms)
	e.members = append(e.members, one)
	return nil
}

// configPlatform reads the platform from the config of a manifest that no index
// describes. What is no config leaves it unknown.
func (e *expander) configPlatform(ctx context.Context, d v1.Descriptor) (string, error) {
	b, err := e.from.Config(ctx, d)
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
	return platformName(c.Platform), nil
}

// expand lists the members of what a name points to. With a source it leaves out
// what would be copied for nobody.
func expand(ctx context.Context, from manifests, root registry.Manifest, platforms []string) (*expander, error) {
	e := &expander{from: from, platforms: platforms, seen: map[string]int{}}
	return e, e.add(ctx, root, 0)
}

// wants tells whether one of the members is wanted: any, or that of a digest.
func (e *expander) wants(digest string) bool {
	return slices.ContainsFunc(e.members, func(m member) bool { return m.wanted && (digest == "" || digest == m.Digest) })
}

// own reads manifests from a repository of the hub's registry.
type own struct {
	registry   *registry.Registry
	repository string
}

func (o own) Manifest(ctx context.Context, digest string) (registry.Manifest, error) {
	return o.registry.Manifest(ctx, o.repository, digest)
}

func (o own) Config(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	return o.registry.ReadBlob(ctx, o.repository, d.Digest.String(), maxConfig)
}
