package conversion

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/store/registry"
)

const (
	// minIndexed is the size in bytes of the smallest layer that gets a zTOC, as in SOCI's
	// programs. Snapshotters fetch smaller ones as a whole.
	minIndexed = 10 << 20
	// maxEntries bounds the entries of a layer, of which each takes a kilobyte of memory.
	maxEntries = 1 << 23
	// sociTool is the name of this program in zTOCs and indexes.
	sociTool = "Lighter"
)

// ErrCannotIndex marks errors that say why an image gets no SOCI index.
var ErrCannotIndex = errors.New("SOCI cannot index the image")

// checkIndexable returns an error if no layer of the images gets a zTOC.
func checkIndexable(images []*registry.Original) error {
	for _, image := range images {
		if image.Digest == "" {
			return fmt.Errorf("%w: it indexes layers as registries have them, and a docker archive has none: push the "+
				"image to a registry first", ErrCannotIndex)
		}
		if slices.ContainsFunc(image.Layers, hasTable) {
			return nil
		}
	}
	return fmt.Errorf("%w: no layer is gzip or a plain tar of at least 10 MiB: use the image as it is, or another "+
		"format", ErrCannotIndex)
}

// hasTable reports whether a layer gets a zTOC.
func hasTable(d ocispec.Descriptor) bool {
	return d.Size >= minIndexed && !strings.HasSuffix(d.MediaType, "zstd")
}

// indexed copies an image, gives it a SOCI index, and publishes all but its manifest. Its layers
// and its config keep their digests.
func (c *converter) indexed(ctx context.Context, from *registry.Original) (m made, err error) {
	m.image = Image{Platform: platformOf(from), From: from.Digest}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: from.Layers,
		Config: describe(ocispec.MediaTypeImageConfig, from.Config), Annotations: maps.Clone(from.Annotations)}
	manifest.SchemaVersion = 2
	delete(manifest.Annotations, soci.AnnotationIndexDigest) // of an index that the image has already
	var layers []converted
	for n := range from.Layers {
		l, err := c.layer(ctx, from, n)
		if err != nil {
			return m, fmt.Errorf("index layer %d (%s) of the image for %s: %w", n+1, nameOf(from, n),
				m.image.Platform, err)
		}
		layers = append(layers, l)
		m.image.Layers = append(m.image.Layers, l.result)
	}
	index, err := c.index(ctx, from, layers)
	if err != nil {
		return m, fmt.Errorf("index the image for %s: %w", m.image.Platform, err)
	}
	if index != nil {
		m.index, m.image.Index = index, index.Digest.String()
		if manifest.Annotations == nil {
			manifest.Annotations = map[string]string{}
		}
		manifest.Annotations[soci.AnnotationIndexDigest] = m.image.Index
	}
	if err := c.to.blob(ctx, manifest.Config, from.Config); err != nil {
		return m, err
	}
	if m.manifest, err = encode(manifest); err != nil {
		return m, err
	}
	m.descriptor = describe(ocispec.MediaTypeImageManifest, m.manifest)
	m.descriptor.Platform, m.descriptor.Annotations = &from.Platform, manifest.Annotations
	m.image.Digest = m.descriptor.Digest.String()
	if index != nil {
		index.Platform = &from.Platform
		index.Annotations = map[string]string{soci.AnnotationManifestDigest: m.image.Digest}
	}
	return m, nil
}

// index publishes the index of an image's zTOCs. It returns nil if there is none.
func (c *converter) index(ctx context.Context, from *registry.Original, layers []converted) (*ocispec.Descriptor,
	error) {
	index := soci.Index{Tool: sociTool}
	var tables []*soci.Table
	known := map[digest.Digest]bool{} // an image may have a layer twice
	for n, l := range layers {
		d := from.Layers[n]
		if l.ztoc == nil || known[d.Digest] {
			continue
		}
		id, err := chunk.ParseID(d.Digest.Encoded())
		if err != nil {
			return nil, err
		}
		known[d.Digest] = true
		index.Layers = append(index.Layers, soci.IndexedLayer{Layer: soci.Digest(id), MediaType: d.MediaType,
			Table: *l.ztoc, SpanSize: soci.DefaultSpanSize})
		tables = append(tables, l.table)
	}
	if len(index.Layers) == 0 {
		return nil, nil
	}
	if len(c.Prioritized) > 0 {
		lists, err := soci.PrefetchOf(tables, c.Prioritized)
		if err != nil {
			return nil, err
		}
		for i, list := range lists {
			if len(list) == 0 {
				continue
			}
			text := soci.EncodePrefetch(list)
			if index.Layers[i].Prefetch, err = c.blob(ctx, soci.MediaTypePrefetch, text); err != nil {
				return nil, err
			}
		}
	}
	if _, err := c.blob(ctx, soci.MediaTypeIndexV2, soci.Config()); err != nil {
		return nil, err
	}
	text := index.Encode()
	d := describe(ocispec.MediaTypeImageManifest, text)
	d.ArtifactType = soci.MediaTypeIndexV2
	return &d, c.to.manifest(ctx, d, text)
}

// blob publishes a blob of an index.
func (c *converter) blob(ctx context.Context, mediaType string, b []byte) (*soci.Blob, error) {
	return &soci.Blob{Digest: soci.Digest(chunk.Sum(b)), Size: int64(len(b))},
		c.to.blob(ctx, describe(mediaType, b), b)
}

// copy publishes a layer as it is, and its zTOC if it gets one.
func (c *converter) copy(ctx context.Context, from *registry.Original, n int) (l converted, err error) {
	old, name := from.Layers[n], nameOf(from, n)
	out, err := c.to.create(c.Dir)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	ztoc, err := c.read(ctx, from, n, out)
	if err != nil {
		return l, fmt.Errorf("read it: %w", err)
	}
	if err := c.to.copy(ctx, from, n, out, c.reporter("push", name, old.Size)); err != nil {
		return l, err
	}
	l.result = Layer{From: name, OldSize: old.Size, Digest: name, NewSize: old.Size, DiffID: from.DiffIDs[n]}
	if ztoc == nil {
		return l, nil
	}
	if l.ztoc, err = c.blob(ctx, soci.MediaTypeTable, ztoc); err != nil {
		return l, err
	}
	l.result.ZTOC, l.result.ZTOCSize = l.ztoc.Digest.String(), l.ztoc.Size
	if len(c.Prioritized) > 0 {
		l.table, err = soci.Decode(ztoc, tree.Limits{})
	}
	return l, err
}

// read copies a layer to out, compares its digests, and makes its zTOC. It returns nil if the layer
// gets none.
func (c *converter) read(ctx context.Context, from *registry.Original, n int, out io.Writer) (ztoc []byte, err error) {
	stored, err := from.Open(n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stored.Close()) }()
	in, diff := c.digested(ctx, stored, from, n), sha256.New()
	layer := bufio.NewReaderSize(io.TeeReader(in, out), 1<<20)
	magic, err := layer.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	o := soci.Options{Compression: soci.Uncompressed, SpanSize: soci.DefaultSpanSize, Tool: sociTool,
		Limits: tree.Limits{Entries: maxEntries}, Plain: diff}
	if compress.FormatOf(magic) == compress.Gzip {
		o.Compression = soci.Gzip
	}
	if hasTable(from.Layers[n]) {
		ztoc, err = soci.Make(layer, o)
	} else {
		_, err = unpackTo(diff, layer)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, layer)
	}
	if err == nil {
		err = in.check(from, n, diff)
	}
	return ztoc, err
}
