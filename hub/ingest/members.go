package ingest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	wanted   bool   // it is an image, to be taken in
	about    string // digest of the manifest that an attestation is about
}

const (
	maxMembers = 1000 // of an index
	maxNesting = 3    // of indexes in indexes
)

// attested is the annotation by which an attestation in an index says what it
// is about.
const attested = "vnd.docker.reference.digest"

// unknownPlatform is what attestations in an index have.
const unknownPlatform = "unknown/unknown"

// expander finds the members of what a name points to.
type expander struct {
	from      manifests
	platforms []string // wanted ones
	members   []member
	offered   []string // platforms that an index has
	indexes   []registry.Manifest
}

func (e *expander) add(ctx context.Context, m registry.Manifest, depth int) error {
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
	if len(index.Manifests)+len(e.members) > maxMembers {
		return fmt.Errorf("index %s: more than %d manifests", m.Digest, maxMembers)
	}
	e.indexes = append(e.indexes, m)
	// What attestations are about comes first: it decides whether they are wanted.
	slices.SortStableFunc(index.Manifests, func(a, b v1.Descriptor) int {
		return cmp.Compare(min(len(a.Annotations[attested]), 1), min(len(b.Annotations[attested]), 1))
	})
	for _, d := range index.Manifests {
		if err := e.addDescriptor(ctx, d, depth); err != nil {
			return err
		}
	}
	return nil
}

// addDescriptor adds what an index names, unless it is elsewhere and nobody
// wants it.
func (e *expander) addDescriptor(ctx context.Context, d v1.Descriptor, depth int) error {
	var platform string
	if d.Platform != nil {
		platform = platformName(*d.Platform)
		e.offered = append(e.offered, platform)
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
	return e.addManifest(ctx, m, d)
}

func (e *expander) addManifest(ctx context.Context, m registry.Manifest, d v1.Descriptor) error {
	one := member{Manifest: m, about: d.Annotations[attested]}
	if d.Platform != nil {
		one.platform = platformName(*d.Platform)
	}
	manifest, err := parseManifest(m)
	var notImage *notImageError
	switch {
	case errors.As(err, &notImage) || one.about != "" || one.platform == unknownPlatform || d.ArtifactType != "":
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
	}
	one.wanted = matches(one.platform, e.platforms)
	e.members = append(e.members, one)
	return nil
}

// configPlatform reads the platform from the config of a manifest that no index
// describes. What is no config leaves it unknown.
func (e *expander) configPlatform(ctx context.Context, d v1.Descriptor) (string, error) {
	b, err := e.from.Config(ctx, d)
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
	e := &expander{from: from, platforms: platforms}
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
