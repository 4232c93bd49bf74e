package direct

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/soci"
	"lighter/store/repository"
)

// maxZTOC bounds a zTOC, in bytes. That of a layer of 20 GB has about 200 MB.
const maxZTOC = 256 << 20

// readSOCI reads an image's SOCI index and its zTOCs. Layers without a zTOC, which are small, are
// read as a whole.
func readSOCI(ctx context.Context, m *Images, from *repository.Repository, im *read) ([]*mapped, error) {
	tables, err := sociIndex(ctx, from, im)
	if err != nil {
		return nil, err
	}
	return eachLayer(ctx, im.layers, func(ctx context.Context, i int, d v1.Descriptor) (*mapped, error) {
		pack, err := packOf(d)
		if err != nil {
			return nil, notDirect{err}
		}
		indexed, found := tables[pack]
		if !found {
			return m.readWhole(ctx, from, im, i)
		}
		b, err := readBlob(ctx, from, indexed.Table, maxZTOC)
		if err != nil {
			return nil, err
		}
		table, err := soci.Decode(b, limits)
		if err != nil {
			return nil, notDirect{fmt.Errorf("the zTOC of layer %s: %w", d.Digest, err)}
		}
		spans, err := readPrefetch(ctx, from, indexed.Prefetch, table)
		if errors.As(err, new(notDirect)) {
			m.config.Log.Warn("a layer's list of what a start reads is ignored", "layer", d.Digest, "err", err)
		} else if err != nil {
			return nil, err
		}
		l, err := table.Map(pack, d.Size, spans)
		if err != nil {
			return nil, notDirect{fmt.Errorf("layer %s: %w", d.Digest, err)}
		}
		return &mapped{Layer: l}, nil
	})
}

// maxIndexes bounds the SOCI indexes of an image that are looked at.
const maxIndexes = 4

// sociIndex finds the index of an image: the one that its manifest names (version 2), or the first
// one that refers to the manifest (version 1) and is there.
func sociIndex(
	ctx context.Context, from *repository.Repository, im *read,
) (tables map[chunk.ID]soci.IndexedLayer, err error) {
	if which := im.annotations[soci.AnnotationIndexDigest]; which != "" {
		return openIndex(ctx, from, im, digest.Digest(which))
	}
	found, err := from.Referrers(ctx, im.digest, soci.MediaTypeIndexV1)
	if err != nil {
		return nil, err
	}
	missing := reasons{}
	for _, d := range found[:min(len(found), maxIndexes)] {
		tables, err := openIndex(ctx, from, im, d.Digest)
		if err == nil || !errors.As(err, new(notDirect)) && !errors.Is(err, chunk.ErrNotFound) {
			return tables, err
		}
		missing = append(missing, err)
	}
	if len(missing) == 0 {
		return nil, notDirect{errors.New("nothing refers to the image")}
	}
	return nil, notDirect{missing}
}

// openIndex reads an index of an image.
func openIndex(
	ctx context.Context, from *repository.Repository, im *read, which digest.Digest,
) (tables map[chunk.ID]soci.IndexedLayer, err error) {
	if err := which.Validate(); err != nil {
		return nil, notDirect{fmt.Errorf("the digest %q of the index: %w", which, err)}
	}
	found, err := from.Manifest(ctx, which.String())
	if err != nil {
		return nil, err
	}
	index, err := soci.DecodeIndex(found.Bytes)
	switch {
	case err != nil:
		return nil, notDirect{fmt.Errorf("index %s: %w", which, err)}
	case index.Subject != nil && index.Subject.Digest != im.digest:
		return nil, notDirect{fmt.Errorf("index %s is that of %s", which, index.Subject.Digest)}
	}
	tables = map[chunk.ID]soci.IndexedLayer{}
	for _, l := range index.Layers {
		tables[chunk.ID(l.Layer)] = l
	}
	return tables, nil
}

// readPrefetch reads a layer's list of what to prefetch, if there is one. The error is notDirect if
// the registry does not have the list, or the list is wrong.
func readPrefetch(ctx context.Context, from *repository.Repository, list *soci.Blob, of *soci.Table) ([]soci.Spans,
	error) {
	if list == nil {
		return nil, nil
	}
	b, err := readBlob(ctx, from, *list, soci.MaxPrefetch)
	if errors.Is(err, chunk.ErrNotFound) {
		err = notDirect{err}
	}
	if err != nil {
		return nil, err
	}
	spans, err := soci.DecodePrefetch(b, of.Spans())
	if err != nil {
		return nil, notDirect{err}
	}
	return spans, nil
}

// readBlob reads a blob that an index names. The error is notDirect if the blob has more than limit
// bytes.
func readBlob(ctx context.Context, from *repository.Repository, which soci.Blob, limit int64) ([]byte, error) {
	b, err := from.Blob(ctx, v1.Descriptor{Digest: digest.Digest(which.Digest.String()), Size: which.Size}, limit)
	if which.Size > limit {
		err = notDirect{err}
	}
	return b, err
}
