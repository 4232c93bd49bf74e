package startup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/startup/plan"
)

// work is a layout that is being made.
type work struct {
	*Service
	tree   *openTree
	layout catalog.Layout
	files  []objects.Staged        // packs
	units  map[chunk.ID]chunk.Unit // units of the chunks in them
	named  []index.Startup
	encode encode
}

// encode appends a builder's compressed unit to dst.
type encode func(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error)

// publish makes a tree's startup packs and the locations that name them, and replaces the previous ones.
func (s *Service) publish(ctx context.Context, t *openTree, before catalog.Layout, packs []plan.Pack, digest []byte, encode encode) error {
	w := &work{Service: s, tree: t, encode: encode, units: map[chunk.ID]chunk.Unit{},
		layout: catalog.Layout{Tree: t.ID(), IndexWire: t.indexLen, Startup: digest}}
	for i := range packs {
		if err := w.pack(ctx, &packs[i]); err != nil {
			return fmt.Errorf("make a startup pack: %w", err)
		}
	}
	locations, err := w.locations(ctx)
	if err != nil {
		return fmt.Errorf("make the locations: %w", err)
	}
	old := []string{objects.LocationsKey(before.Locations)}
	return s.publisher.Publish(ctx, publish.Objects{Packs: w.files, Others: []objects.Staged{locations}, Replaced: old},
		func() error { return s.catalog.SetLayout(ctx, &w.layout) })
}

// pack stages a startup pack.
func (w *work) pack(ctx context.Context, p *plan.Pack) error {
	path := filepath.Join(w.tree.dir, fmt.Sprintf("pack-%d", len(w.files)))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	writer := pack.NewWriter(file)
	named := index.Startup{AtMount: p.AtMount, Triggers: p.Triggers}
	var builder pack.UnitBuilder
	var encoded []byte
	for _, refs := range p.Units {
		if err := w.unit(ctx, refs, &builder); err != nil {
			return err
		}
		if encoded, err = w.encode(ctx, &builder, encoded[:0]); err != nil {
			return err
		}
		if _, err := writer.Add(encoded); err != nil {
			return err
		}
		named.Units = append(named.Units, uint32(len(encoded)))
	}
	id, size, err := writer.Close()
	if err := errors.Join(err, file.Sync()); err != nil {
		return err
	}
	for n, refs := range p.Units {
		for _, ref := range refs {
			w.units[ref.ID] = chunk.Unit{Pack: id, N: uint32(n)}
		}
	}
	named.Pack = id
	w.named = append(w.named, named)
	w.layout.Packs = append(w.layout.Packs, catalog.StartupPack{ID: id, Size: size})
	w.files = append(w.files, objects.Staged{Key: objects.PackKey(id), Path: path})
	return nil
}

// unit fills the builder with chunks.
func (w *work) unit(ctx context.Context, refs []chunk.Ref, builder *pack.UnitBuilder) error {
	builder.Reset()
	ids := make([]chunk.ID, len(refs))
	for i, ref := range refs {
		ids[i] = ref.ID
	}
	if err := w.tree.chunks.lookUp(ctx, ids); err != nil {
		return err
	}
	for _, id := range ids {
		plain, err := w.tree.chunks.read(ctx, id)
		if err != nil {
			return err
		}
		builder.Add(id, plain)
	}
	return nil
}

// locateBatch is the number of chunks looked up with one query.
const locateBatch = 500

// locations stages the tree's locations.
func (w *work) locations(ctx context.Context) (objects.Staged, error) {
	b := index.NewLocations(w.tree.ID())
	batch := make([]chunk.ID, 0, locateBatch)
	flush := func() error {
		found, err := w.catalog.Units(ctx, batch)
		if err != nil {
			return err
		}
		for _, id := range batch {
			unit, laid := w.units[id]
			if !laid {
				unit = found[id] // zero: unknown; nodes then ask for the chunk by its ID
			}
			b.Add(unit)
		}
		batch = batch[:0]
		return nil
	}
	for i := range w.tree.Extents {
		e, err := w.tree.Extent(i)
		if err != nil {
			return objects.Staged{}, err
		}
		if batch = append(batch, e.ID); len(batch) == locateBatch {
			if err := flush(); err != nil {
				return objects.Staged{}, err
			}
		}
	}
	if err := flush(); err != nil {
		return objects.Staged{}, err
	}
	for _, s := range w.named {
		b.Startup(s)
	}
	plain := b.Encode()
	w.layout.Locations = chunk.Sum(plain)
	path := filepath.Join(w.tree.dir, "locations")
	wire, err := compressFile(path, plain)
	w.layout.Wire = wire
	return objects.Staged{Key: objects.LocationsKey(w.layout.Locations), Path: path}, err
}

// compressFile writes the compressed bytes to a file, syncs it, and returns its size.
func compressFile(path string, plain []byte) (int64, error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	z := compress.IndexEncoder(file, int64(len(plain)))
	if _, err := z.Write(plain); err != nil {
		return 0, err
	}
	if err := errors.Join(z.Close(), file.Sync()); err != nil {
		return 0, err
	}
	return file.Seek(0, io.SeekCurrent)
}
