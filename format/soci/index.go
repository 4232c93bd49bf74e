package soci

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of an index's parts. Those of versions are in its config's descriptor.
const (
	MediaTypeIndexV1  = "application/vnd.amazon.soci.index.v1+json"
	MediaTypeIndexV2  = "application/vnd.amazon.soci.index.v2+json"
	MediaTypeTable    = "application/octet-stream"
	MediaTypePrefetch = "application/vnd.amazon.soci.prefetch.v1+json"
)

// Annotations outside of indexes, by which an index of version 2 is found.
const (
	// AnnotationIndexDigest is an annotation of an image's manifest: the digest of its index.
	AnnotationIndexDigest = "com.amazon.soci.index-digest"
	// AnnotationManifestDigest is an annotation of an index's descriptor in an image index: the
	// digest of the image's manifest.
	AnnotationManifestDigest = "com.amazon.soci.image-manifest-digest"
)

// Annotations inside of indexes.
const (
	annotationLayerDigest    = "com.amazon.soci.image-layer-digest"
	annotationLayerMediaType = "com.amazon.soci.image-layer-mediaType"
	annotationSpanSize       = "com.amazon.soci.span-size"
	annotationNoXattrs       = "com.amazon.soci.disable-xattrs"
	annotationTool           = "com.amazon.soci.build-tool-identifier"
)

const (
	// MaxIndex bounds the size of an index in bytes, as registries bound manifests.
	MaxIndex = 4 << 20

	configText = "{}"
)

// Index is the manifest that names the zTOCs of an image for one platform.
type Index struct {
	// Subject is the image's manifest in an index of version 1, which is found by it. Version 2 has
	// none: the image's manifest names the index.
	Subject *ocispec.Descriptor
	// Tool is the program that made the index.
	Tool string
	// Layers are those layers of the image that have a zTOC, in the image's order.
	Layers []IndexedLayer
}

// IndexedLayer is a layer with its zTOC.
type IndexedLayer struct {
	Layer     Digest // of the layer's blob
	MediaType string // of the layer
	Table     Blob   // the zTOC
	Prefetch  *Blob  // a Prefetch, if there is one
	SpanSize  int64  // as in the zTOC; 0: the index does not say
	NoXattrs  bool   // the layer has no extended attributes and no opaque directories
}

// Blob is an object in the repository of the image.
type Blob struct {
	Digest Digest
	Size   int64 // in bytes
}

// DecodeIndex decodes an index. It ignores layers of unknown media types. A list of what to
// prefetch is a hint, so one that does not belong to a zTOC is ignored, too.
func DecodeIndex(data []byte) (*Index, error) {
	i, err := decodeIndex(data)
	if err != nil {
		return nil, fmt.Errorf("decode a SOCI index: %w", err)
	}
	return i, nil
}

func decodeIndex(data []byte) (*Index, error) {
	if len(data) > MaxIndex {
		return nil, fmt.Errorf("%d bytes, the limit is %d", len(data), MaxIndex)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	i := &Index{Tool: m.Annotations[annotationTool]}
	switch m.Config.MediaType {
	case MediaTypeIndexV1:
		if i.Subject = m.Subject; i.Subject == nil {
			return nil, errors.New("version 1 without a subject")
		}
		if _, err := parseDigest(string(i.Subject.Digest)); err != nil {
			return nil, fmt.Errorf("subject: %w", err)
		}
	case MediaTypeIndexV2:
	default:
		return nil, fmt.Errorf("config of the media type %q", shorten(m.Config.MediaType))
	}
	positions := map[Digest]int{} // by layer
	for n, d := range m.Layers {
		if err := i.add(d, positions); err != nil {
			return nil, fmt.Errorf("layer %d: %w", n, err)
		}
	}
	if len(i.Layers) == 0 {
		return nil, errors.New("it has no zTOC")
	}
	return i, nil
}

// add adds a layer of the manifest: a zTOC, or what to prefetch.
func (i *Index) add(d ocispec.Descriptor, positions map[Digest]int) error {
	if d.MediaType != MediaTypeTable && d.MediaType != MediaTypePrefetch {
		return nil
	}
	layer, err := parseDigest(d.Annotations[annotationLayerDigest])
	if err != nil {
		return fmt.Errorf("the image's layer: %w", err)
	}
	blob := Blob{Size: d.Size}
	if blob.Digest, err = parseDigest(string(d.Digest)); err != nil {
		return err
	}
	if d.Size < 0 {
		return fmt.Errorf("%d bytes", d.Size)
	}
	n, known := positions[layer]
	if d.MediaType == MediaTypePrefetch {
		if known && i.Layers[n].Prefetch == nil {
			i.Layers[n].Prefetch = &blob
		}
		return nil
	}
	if known {
		return fmt.Errorf("a second zTOC of layer %s", layer)
	}
	l := IndexedLayer{Layer: layer, MediaType: d.Annotations[annotationLayerMediaType], Table: blob,
		NoXattrs: d.Annotations[annotationNoXattrs] == "true"}
	if text, ok := d.Annotations[annotationSpanSize]; ok {
		if l.SpanSize, err = strconv.ParseInt(text, 10, 64); err != nil || l.SpanSize <= 0 {
			return fmt.Errorf("span size %q", shorten(text))
		}
	}
	positions[layer] = len(i.Layers)
	i.Layers = append(i.Layers, l)
	return nil
}

// Encode returns the index as SOCI's programs write it: of version 1 if it has a subject, otherwise
// of version 2. Its config is the blob that Config returns.
func (i *Index) Encode() []byte {
	kind := MediaTypeIndexV2
	if i.Subject != nil {
		kind = MediaTypeIndexV1
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: kind, Digest: digest.FromString(configText),
			Size: int64(len(configText))},
		Subject: i.Subject, Annotations: map[string]string{annotationTool: i.Tool},
	}
	for _, l := range i.Layers {
		d := l.Table.descriptor(MediaTypeTable, l.Layer)
		d.Annotations[annotationLayerMediaType] = l.MediaType
		if l.SpanSize > 0 {
			d.Annotations[annotationSpanSize] = strconv.FormatInt(l.SpanSize, 10)
		}
		if l.NoXattrs {
			d.Annotations[annotationNoXattrs] = "true"
		}
		m.Layers = append(m.Layers, d)
	}
	for _, l := range i.Layers {
		if l.Prefetch != nil {
			m.Layers = append(m.Layers, l.Prefetch.descriptor(MediaTypePrefetch, l.Layer))
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // a manifest has only strings and numbers
	}
	return text
}

// Config returns the blob that every index has as its config.
func Config() []byte { return []byte(configText) }

func (b Blob) descriptor(mediaType string, layer Digest) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.Digest(b.Digest.String()), Size: b.Size,
		Annotations: map[string]string{annotationLayerDigest: layer.String()}}
}
