// Package attached reads and writes the artifact that has an image's index, in a registry beside
// the unchanged image. A node that finds it starts the image lazily: chunks are ranges of the
// image's own layers.
//
// The artifact is an OCI manifest (image specification 1.1) whose subject is the image's manifest.
// Its first blob is a signed envelope, and the envelope's payload, the Contents, names all others:
//
//	Envelope     Contents, signed (DSSE 1.0, as in-toto and others use it)
//	Index        the index of the image's tree
//	Locations    the units of the tree's chunks, and the startup packs
//	Tables       the layer table of each layer (package layer)
//	Packs        startup packs (package pack), if starts were recorded
//
// Index and tables have their compact form: the tables refer to extents of the index by number,
// because chunk IDs do not compress. All blobs but the packs are compressed with zstd.
//
// The manifest of the artifact only leads to the envelope, and makes the registry keep the blobs.
// It is not trusted: what counts is in the Contents, which Open returns if a known key has signed
// them.
//
// Hazard: a signature says that the key's owner has read the layers. It says nothing of who may
// read the image: a reader asks the registry for that.
package attached

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
)

// ArtifactType is the artifact type of the manifest: what referrers are listed by.
const ArtifactType = "application/vnd.lighter.index.v2"

// AnnotationVersion is the annotation of the manifest that has the contents' version: a hint, by
// which readers choose what to look at first.
const AnnotationVersion = "vnd.lighter.version"

// NewestFirst sorts the list of a registry, which has no order, by AnnotationVersion.
func NewestFirst(listed []v1.Descriptor) {
	version := func(d v1.Descriptor) int {
		n, _ := strconv.Atoi(d.Annotations[AnnotationVersion])
		return n
	}
	slices.SortStableFunc(listed, func(a, b v1.Descriptor) int { return cmp.Compare(version(b), version(a)) })
}

// maxVersion is far above what a version reaches by one index after the other.
const maxVersion = 1 << 30

// After returns the version of an index that takes the place of others, whoever has signed them: at
// least version, and above that of old. It ignores versions that no index reaches: anybody who may
// push to the repository can claim one, and the next version would not be above it.
func After(version int, old *Contents) int {
	if old.Version > maxVersion {
		return version
	}
	return max(version, old.Version+1)
}

// Media types of the blobs.
const (
	MediaTypeEnvelope  = "application/vnd.dsse.envelope.v1+json"
	MediaTypeIndex     = "application/vnd.lighter.index.v2+zstd"
	MediaTypeLocations = "application/vnd.lighter.locations.v1+zstd"
	MediaTypeTable     = "application/vnd.lighter.layer-table.v2+zstd"
	MediaTypePack      = "application/vnd.lighter.pack.v1"
)

// Bounds of an artifact.
const (
	MaxEnvelope = 4 << 20 // bytes
	// maxInline bounds an envelope that the manifest has, too, in bytes: readers save a request.
	// Registries need not accept manifests of more than 4 MiB.
	maxInline = 64 << 10
	MaxLayers = 1000
	// maxBlob bounds each blob, in bytes.
	maxBlob = 4 << 30
)

// Contents say what an artifact has, and for which image.
type Contents struct {
	Manifest digest.Digest `json:"manifest"` // of the image
	Chain    string        `json:"chain"`    // the chainID of its layers
	Tree     chunk.ID      `json:"tree"`     // the tree ID
	Format   int           `json:"format"`   // the index's format number
	// Version grows by one whenever other contents replace these.
	Version int `json:"version"`

	Index     v1.Descriptor   `json:"index"`
	Locations v1.Descriptor   `json:"locations"`
	Tables    []v1.Descriptor `json:"tables"` // of the layers, the lowest first
	Packs     []Pack          `json:"packs,omitempty"`
}

// Pack is a startup pack.
type Pack struct {
	Blob  v1.Descriptor `json:"blob"`  // its digest is the pack's ID
	Units []uint32      `json:"units"` // the sizes of its units, in bytes: they follow each other from 0 on
}

// Blobs returns the descriptors of all blobs but the envelope.
func (c *Contents) Blobs() []v1.Descriptor {
	all := append([]v1.Descriptor{c.Index, c.Locations}, c.Tables...)
	for _, p := range c.Packs {
		all = append(all, p.Blob)
	}
	return all
}

// Equal reports whether two contents are the same, but for their version.
func (c *Contents) Equal(other *Contents) bool {
	a, b := *c, *other
	a.Version, b.Version = 0, 0
	return reflect.DeepEqual(a, b)
}

// check returns an error if the contents contradict themselves, or exceed the bounds.
func (c *Contents) check() error {
	switch {
	case c.Manifest.Validate() != nil:
		return fmt.Errorf("manifest %q is no digest", c.Manifest)
	case digest.Digest(c.Chain).Validate() != nil:
		return fmt.Errorf("chain %q is no digest", c.Chain)
	case c.Format > index.Format:
		return &index.NewerFormatError{Format: c.Format}
	case c.Format < 1 || c.Tree.IsZero() || c.Version < 0:
		return errors.New("it names no tree, or a version below 0")
	case len(c.Tables) == 0 || len(c.Tables) > MaxLayers:
		return fmt.Errorf("it has tables of %d layers: want 1 to %d", len(c.Tables), MaxLayers)
	case len(c.Packs) > index.MaxStartups:
		return fmt.Errorf("it has %d startup packs: want at most %d", len(c.Packs), index.MaxStartups)
	}
	for _, d := range c.Blobs() {
		if d.Digest.Validate() != nil || d.Digest.Algorithm() != digest.SHA256 || d.Size < 1 || d.Size > maxBlob {
			return fmt.Errorf("blob %q has %d bytes: want a SHA-256, and 1 to %d bytes", d.Digest, d.Size,
				int64(maxBlob))
		}
	}
	for _, p := range c.Packs {
		if err := p.check(); err != nil {
			return fmt.Errorf("startup pack %s: %w", p.Blob.Digest, err)
		}
	}
	return nil
}

func (p *Pack) check() error {
	if len(p.Units) == 0 || len(p.Units) > index.MaxUnits {
		return fmt.Errorf("it has %d units: want 1 to %d", len(p.Units), index.MaxUnits)
	}
	total := int64(0)
	for i, n := range p.Units {
		if n == 0 || n > pack.MaxStored {
			return fmt.Errorf("unit %d has %d bytes: want 1 to %d", i, n, pack.MaxStored)
		}
		total += int64(n)
	}
	if total > p.Blob.Size {
		return fmt.Errorf("its units have %d bytes, the blob has %d", total, p.Blob.Size)
	}
	return nil
}

// ID returns the pack's ID.
func (p *Pack) ID() (chunk.ID, error) { return chunk.ParseID(p.Blob.Digest.Encoded()) }

// Unit returns where unit n is in the blob, in bytes. The error wraps chunk.ErrNotFound if there is
// no such unit.
func (p *Pack) Unit(n uint32) (offset, length int64, err error) {
	if int64(n) >= int64(len(p.Units)) {
		return 0, 0, fmt.Errorf("unit %d of startup pack %s: %w", n, p.Blob.Digest, chunk.ErrNotFound)
	}
	for _, before := range p.Units[:n] {
		offset += int64(before)
	}
	return offset, int64(p.Units[n]), nil
}

// Config is the config that the artifact's manifest names: the two bytes {}. Its media type is the
// artifact type, because some registries list referrers by that.
func Config() (v1.Descriptor, []byte) {
	d := v1.DescriptorEmptyJSON
	b := d.Data
	d.MediaType, d.Data = ArtifactType, nil
	return d, b
}

// Manifest returns the manifest of an artifact. subject is the image's manifest; its size may be 0:
// then the artifact has none, because it is in another repository than the image.
func Manifest(c *Contents, envelope []byte, subject v1.Descriptor) ([]byte, error) {
	config, _ := Config()
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: ArtifactType, Config: config, Annotations: map[string]string{
			AnnotationVersion: strconv.Itoa(c.Version)}}
	first := v1.Descriptor{MediaType: MediaTypeEnvelope, Digest: digest.FromBytes(envelope), Size: int64(len(envelope))}
	if len(envelope) <= maxInline {
		first.Data = envelope
	}
	m.Layers = append(append(m.Layers, first), c.Blobs()...)
	if subject.Size > 0 {
		m.Subject = &subject
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest of an attached index: %w", err)
	}
	return b, nil
}

// envelopeOf returns the descriptor of the envelope that the manifest of an untrusted artifact
// names, and the digest of its subject; empty: it has none. The descriptor has the envelope itself
// (Data) if it is small.
func envelopeOf(manifest []byte) (envelope v1.Descriptor, subject digest.Digest, err error) {
	var m v1.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return envelope, "", fmt.Errorf("read the manifest of an attached index: %w", err)
	}
	if m.ArtifactType != ArtifactType || len(m.Layers) == 0 || m.Layers[0].MediaType != MediaTypeEnvelope {
		return envelope, "", fmt.Errorf("read the manifest of an attached index: it is of type %q, and has no envelope",
			m.ArtifactType)
	}
	envelope = m.Layers[0]
	if envelope.Digest.Validate() != nil || envelope.Size < 1 || envelope.Size > MaxEnvelope {
		return envelope, "", fmt.Errorf("read the manifest of an attached index: its envelope %q has %d bytes, "+
			"want at most %d", envelope.Digest, envelope.Size, MaxEnvelope)
	}
	if len(envelope.Data) > 0 && (int64(len(envelope.Data)) != envelope.Size ||
		envelope.Digest.Algorithm().FromBytes(envelope.Data) != envelope.Digest) {
		return envelope, "", errors.New("read the manifest of an attached index: its data is not the envelope")
	}
	if m.Subject != nil {
		subject = m.Subject.Digest
	}
	return envelope, subject, nil
}

// ChainTag returns the tag of the artifact of a chain in a repository that serves as a hub without
// a process: chain-HEX.
func ChainTag(chain string) string { return "chain-" + digest.Digest(chain).Encoded() }
