// Package conversion writes an image in a lazy format, for nodes whose snapshotter starts such
// images without a hub: with layers in eStargz or zstd:chunked, or with a SOCI index. The image is
// read from a registry, an OCI layout or a docker archive, and written to an OCI layout or a
// registry.
//
// The new image shows the same files as the old one, besides eStargz' own files in the root. Its
// config is the old one with other diffIDs. Annotations are kept, except for those that describe
// the old layers. Its media types are those of OCI. Attestations and signatures belong to the old
// digests, and are left out.
//
// With a SOCI index, layers and config are the old ones. Only the manifest is another one, as it
// names the index. The destination gets the layers that it does not have.
//
// Each manifest, config and layer is compared with its digest, and each layer's tar with its
// diffID, before anything made of it is published. The new image has its name when all of it is
// there.
//
// A layer is unpacked to a file without a name in the directory for temporary files: its tar, and
// for a registry also the new layer. With a SOCI index it is the layer as it is stored, and only
// for a registry. There is one layer at a time, and the files end with the process, however it
// ends. Memory is bounded by the number of members that are compressed at a time, and their length.
// A SOCI index needs a kilobyte for each entry of a layer, and twice the zTOC of a layer; with
// prioritized files, also all zTOCs of the image.
//
// The package refuses layers that are no tar, and entries that a table of contents cannot express.
// A layout is written by one process at a time.
package conversion

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/soci"
	"lighter/store/registry"
)

// Options say how images are converted.
type Options struct {
	Format Format
	Level  int // of compression, as gzip and zstd count; 0: 6, or for zstd 3
	// Prioritized are parts of files in the order of their first reads, which are fetched first.
	// Only SOCI's lists can name a part of a file: the other formats have the whole files first.
	Prioritized []soci.Part
	Jobs        int    // members that are compressed at a time; 0: 1
	Dir         string // for temporary files; empty: that of the system

	// Report is called with the progress of a step (read, write, push) of the layer with a digest,
	// in bytes. It may be nil.
	Report func(step, layer string, done, total int64)
}

// Result is an image, or the images of several platforms, that were converted.
type Result struct {
	Name   string  `json:"name"` // of the destination
	Format Format  `json:"format"`
	Digest string  `json:"digest"` // of the manifest; of several platforms, and with SOCI: of the index
	Images []Image `json:"images"`
}

// Image is an image of one platform that was converted.
type Image struct {
	Platform string  `json:"platform"`
	From     string  `json:"from,omitempty"` // the old manifest's digest; empty: of a docker archive
	Digest   string  `json:"digest"`
	Index    string  `json:"soci_index,omitempty"` // the digest of its SOCI index, if it has one
	Layers   []Layer `json:"layers"`
}

// Layer is a layer that was converted. Sizes are in bytes.
type Layer struct {
	From    string `json:"from"` // the digest of the old layer; of a docker archive: its diffID
	OldSize int64  `json:"old_size"`
	Digest  string `json:"digest"`
	NewSize int64  `json:"new_size"`
	DiffID  string `json:"diff_id"`

	ZTOC     string `json:"ztoc,omitempty"` // the digest of the layer's zTOC, if it has one
	ZTOCSize int64  `json:"ztoc_size,omitempty"`
}

// Convert writes images of a source (Originals) to a destination, and gives them its name.
func Convert(ctx context.Context, images []*registry.Original, to *Destination, o Options) (Result, error) {
	c, err := newConverter(o, to)
	if err != nil {
		return Result{}, err
	}
	convert, done := c.image, Result{Name: to.name, Format: o.Format}
	if o.Format == SOCI {
		convert = c.indexed
		if err := checkIndexable(images); err != nil {
			return Result{}, err
		}
	}
	var made []made
	for _, image := range images {
		m, err := convert(ctx, image)
		if err != nil {
			return Result{}, err
		}
		done.Images = append(done.Images, m.image)
		made = append(made, m)
	}
	top, text := made[0].descriptor, made[0].manifest
	if len(made) > 1 || o.Format == SOCI {
		for _, m := range made {
			if err := to.manifest(ctx, m.descriptor, m.manifest); err != nil {
				return Result{}, err
			}
		}
		if top, text, err = indexOf(made); err != nil {
			return Result{}, err
		}
	}
	done.Digest = top.Digest.String()
	return done, to.publish(ctx, top, text)
}

// made is an image that was converted, whose manifest is not published.
type made struct {
	image      Image
	descriptor ocispec.Descriptor
	manifest   []byte
	index      *ocispec.Descriptor // the SOCI index, which is published; nil: there is none
}

// image converts the layers of an image, and publishes all but its manifest.
func (c *converter) image(ctx context.Context, from *registry.Original) (m made, err error) {
	m.image = Image{Platform: platformOf(from), From: from.Digest}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{},
		Annotations: keptAnnotations(from.Annotations)}
	manifest.SchemaVersion = 2
	var diffIDs []digest.Digest
	for n := range from.Layers {
		l, err := c.layer(ctx, from, n)
		if err != nil {
			return m, fmt.Errorf("convert layer %d (%s) of the image for %s: %w", n+1, nameOf(from, n),
				m.image.Platform, err)
		}
		manifest.Layers = append(manifest.Layers, l.descriptor)
		diffIDs = append(diffIDs, l.diffID)
		m.image.Layers = append(m.image.Layers, l.result)
	}
	config, err := configOf(from.Config, diffIDs)
	if err != nil {
		return m, fmt.Errorf("convert the config of the image for %s: %w", m.image.Platform, err)
	}
	manifest.Config = describe(ocispec.MediaTypeImageConfig, config)
	if err := c.to.blob(ctx, manifest.Config, config); err != nil {
		return m, err
	}
	if m.manifest, err = encode(manifest); err != nil {
		return m, err
	}
	m.descriptor = describe(ocispec.MediaTypeImageManifest, m.manifest)
	m.descriptor.Platform = &from.Platform
	m.image.Digest = m.descriptor.Digest.String()
	return m, nil
}
