package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/attached"
	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/layer"
	"lighter/format/layer/survey"
	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/oci"
	"lighter/hub/pull"
	"lighter/registries/push"
	"lighter/wire"
)

// mapPages is the number of cached pages of the extent map, of 5 kB each.
const mapPages = 1024

// make makes the contents. The tables are those of the newest index that is attached already, if it
// is of the same tree.
func (w *work) make(ctx context.Context, old []found) error {
	var tables []v1.Descriptor
	if len(old) > 0 {
		if c := old[0].contents; c.Tree == w.contents.Tree && c.Chain == w.contents.Chain &&
			c.Format == w.contents.Format && len(c.Tables) == len(w.layers) {
			tables = c.Tables
		}
	}
	extents, closeExtents, err := w.index(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = closeExtents() }() // only read
	places, err := w.tables(ctx, tables, extents)
	if err != nil {
		return err
	}
	made, err := w.startups(ctx, extents)
	if err != nil {
		return err
	}
	plain, err := layer.Locations(w.image.Tree, extents.Refs, places, made)
	if err != nil {
		return err
	}
	w.contents.Locations, err = w.write(attached.MediaTypeLocations, func(to io.Writer) error {
		return attached.WriteLocations(to, plain)
	})
	return err
}

// tables gets the tables of the layers: those that are attached, if there are any, or those that
// are made by reading the layers.
func (w *work) tables(ctx context.Context, attachedOnes []v1.Descriptor, of *index.Map) (all []layer.Places,
	err error) {
	numbers, err := of.Numbers()
	if err != nil {
		return nil, err
	}
	for i := range w.layers {
		var old *v1.Descriptor
		if attachedOnes != nil {
			old = &attachedOnes[i]
		}
		places, err := w.table(ctx, &w.layers[i], old, of, numbers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", &w.layers[i], err)
		}
		all = append(all, places)
	}
	return all, nil
}

// table gets the table of a layer: an old one, if it is not nil, or one that is made by reading the
// layer.
func (w *work) table(ctx context.Context, l *oci.Layer, old *v1.Descriptor, of *index.Map,
	numbers map[chunk.ID]int64) (places layer.Places, err error) {
	survey := func(to io.Writer) error { return w.survey(ctx, l, numbers, to) }
	var d v1.Descriptor
	if old == nil {
		d, err = w.write(attached.MediaTypeTable, survey)
	} else {
		d, err = w.write(attached.MediaTypeTable, func(to io.Writer) error { return w.fetch(ctx, *old, to) })
		if isNotFound(err) { // the registry has lost it
			d, err = w.write(attached.MediaTypeTable, survey)
		}
	}
	if err != nil {
		return places, err
	}
	w.contents.Tables = append(w.contents.Tables, d)
	blob, err := os.Open(push.FilePath(w.dir, d.Digest))
	if err != nil {
		return places, err
	}
	defer blob.Close() // only read
	made, err := attached.ReadTable(blob, of)
	if err != nil {
		return places, err
	}
	table, err := made.Open()
	if err != nil {
		return places, err
	}
	return table.Places()
}

func (w *work) fetch(ctx context.Context, d v1.Descriptor, to io.Writer) error {
	from := w.from.Blob(ctx, d.Digest.String(), d.Size)
	_, err := io.Copy(to, from)
	if err = errors.Join(err, from.Close()); err != nil {
		err = fmt.Errorf("%w: %w", pull.ErrSource, err)
	}
	return err
}

// survey makes the table of a layer. Its bytes are compared with the digests in the image's
// manifest and config.
func (w *work) survey(ctx context.Context, l *oci.Layer, numbers map[chunk.ID]int64, to io.Writer) error {
	from := &source{ReadCloser: w.from.Blob(ctx, l.Digest, l.Size),
		progress: w.job.Step("survey", wire.ShortDigest(l.Digest), l.Size).Add}
	defer from.Close() // only read
	s, err := survey.Read(from, w.Limits, func(*tree.Entry) error { return nil }, nil)
	if err != nil { // it counts only if the rest arrives, and the layer has its digest
		_, _ = io.Copy(io.Discard, from) // its error is kept
	}
	switch {
	case from.err != nil:
		return fmt.Errorf("%w: %w", pull.ErrSource, from.err)
	case err != nil:
		return err
	case "sha256:"+s.Blob.String() != l.Digest || "sha256:"+s.DiffID.String() != l.DiffID:
		return fmt.Errorf("its bytes have the digest sha256:%s and the diffID sha256:%s, the config says %s", s.Blob,
			s.DiffID, l.DiffID)
	}
	table, err := s.Table.Open()
	if err != nil {
		return err
	}
	return attached.WriteTable(to, table, numbers)
}

// source is a layer that is read. It keeps the error of its registry: other errors are about what
// the layer has.
type source struct {
	io.ReadCloser
	progress func(n int)
	err      error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	s.progress(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// index opens the extents of the tree's index, which the hub stores, and writes its blob.
func (w *work) index(ctx context.Context) (extents *index.Map, closeExtents func() error, err error) {
	o, err := w.Objects.Open(ctx, objects.IndexKey(w.image.Tree))
	if err != nil {
		return nil, nil, err
	}
	plain, err := compress.ReadCloser(o)
	if err != nil {
		return nil, nil, err
	}
	defer plain.Close() // only read
	metadata, err := os.CreateTemp(w.dir, "metadata-*")
	if err != nil {
		return nil, nil, err
	}
	defer metadata.Close() // all of it was read back
	file, err := os.CreateTemp(w.dir, "extents-*")
	if err != nil {
		return nil, nil, err
	}
	_, err = index.Receive(plain, w.image.Tree, file, metadata)
	if err == nil {
		_, err = metadata.Seek(0, io.SeekStart)
	}
	if err == nil {
		extents, err = index.OpenMap(file, w.image.Tree, index.NewPages(mapPages))
	}
	if err == nil {
		w.contents.Index, err = w.write(attached.MediaTypeIndex, func(to io.Writer) error {
			return attached.WriteIndex(to, extents, metadata)
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return extents, file.Close, nil
}

// startups returns the startup packs of the tree's layout, and adds their blobs.
func (w *work) startups(ctx context.Context, extents *index.Map) (made layer.Startups, err error) {
	l, err := w.Catalog.Starts.Layout(ctx, w.image.Tree)
	if errors.Is(err, catalog.ErrNotFound) {
		err = fmt.Errorf("%w: %w", objects.ErrNotFound, err) // the tree was removed meanwhile
	}
	if err != nil {
		return made, err
	}
	w.image.Startup = l.Startup
	locations, err := w.Objects.ReadLocations(ctx, l.Locations, w.image.Tree, extents.Extents)
	if err != nil {
		return made, err
	}
	made.Packs, made.Units = locations.Startups(), map[chunk.ID]chunk.Unit{}
	laid := map[chunk.ID]bool{}
	for _, p := range made.Packs {
		laid[p.Pack] = true
		key := objects.PackKey(p.Pack)
		size, err := w.Objects.Size(ctx, key)
		if err != nil {
			return made, err
		}
		d := v1.Descriptor{MediaType: attached.MediaTypePack, Size: size,
			Digest: digest.NewDigestFromEncoded(digest.SHA256, p.Pack.String())}
		w.contents.Packs = append(w.contents.Packs, attached.Pack{Blob: d, Units: p.Units})
		w.blobs = append(w.blobs, push.Blob{Descriptor: d,
			Open: func() (io.ReadCloser, error) { return w.Objects.Open(ctx, key) }})
	}
	return made, locations.Each(func(i int64, u chunk.Unit) error {
		if !laid[u.Pack] {
			return nil
		}
		x, err := extents.Extent(i)
		made.Units[x.ID] = u
		return err
	})
}

// write writes a blob to a file, and adds it.
func (w *work) write(mediaType string, fill func(to io.Writer) error) (v1.Descriptor, error) {
	b, err := push.WriteFile(w.dir, mediaType, fill)
	if err == nil {
		w.blobs = append(w.blobs, b)
	}
	return b.Descriptor, err
}
