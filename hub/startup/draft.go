package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/format/plan"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/publish"
)

// draft is a layout that is not published yet. Its objects are in the tree's scratch directory.
type draft struct {
	catalog   *catalog.Catalog
	tree      *openTree
	layout    catalog.Layout
	packs     []objects.Staged
	locations objects.Staged
	units     map[chunk.ID]chunk.Unit // units of the chunks in the packs
	startups  []index.Startup
	encode    encode
}

// encode appends a builder's compressed unit to dst.
type encode func(ctx context.Context, b *pack.UnitBuilder, dst []byte) ([]byte, error)

// stage makes a tree's startup packs and the locations that name them.
func stage(ctx context.Context, c *catalog.Catalog, t *openTree, packs []plan.Pack, digest []byte,
	encode encode) (*draft, error) {
	count, err := c.Collections(ctx)
	if err != nil {
		return nil, err
	}
	d := &draft{catalog: c, tree: t, encode: encode, units: map[chunk.ID]chunk.Unit{},
		layout: catalog.Layout{Tree: t.ID(), IndexWire: t.indexLen, Startup: digest, Moves: count.Moves}}
	for i := range packs {
		if err := d.addPack(ctx, &packs[i]); err != nil {
			return nil, fmt.Errorf("make startup pack: %w", err)
		}
	}
	if err := d.addLocations(ctx); err != nil {
		return nil, fmt.Errorf("make locations: %w", err)
	}
	return d, nil
}

// publish makes the draft the tree's layout. before is the layout that the draft replaces. The
// error is catalog.ErrChanged if the tree has another layout than before.
func (d *draft) publish(
	ctx context.Context, p *publish.Publisher, l catalog.Lease, before catalog.Layout,
) error {
	all := publish.Objects{Staged: append(slices.Clip(d.packs), d.locations),
		Replaced: []string{objects.LocationsKey(before.Locations)}}
	return p.Publish(ctx, all, func(claim catalog.Claim) error {
		d.layout.Claim, d.layout.Lease, d.layout.Before = claim, l, before.Locations
		return d.catalog.Starts.SetLayout(ctx, &d.layout)
	})
}

// addPack stages a startup pack.
func (d *draft) addPack(ctx context.Context, p *plan.Pack) error {
	path := filepath.Join(d.tree.dir, fmt.Sprintf("pack-%d", len(d.packs)))
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
		if err := d.fillUnit(ctx, refs, &builder); err != nil {
			return err
		}
		if encoded, err = d.encode(ctx, &builder, encoded[:0]); err != nil {
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
			d.units[ref.ID] = chunk.Unit{Pack: id, N: uint32(n)}
		}
	}
	named.Pack = id
	d.startups = append(d.startups, named)
	d.layout.Packs = append(d.layout.Packs, catalog.StartupPack{ID: id, Size: size})
	d.packs = append(d.packs, objects.Staged{Key: objects.PackKey(id), Path: path})
	return nil
}

// fillUnit fills the builder with chunks.
func (d *draft) fillUnit(ctx context.Context, refs []chunk.Ref, builder *pack.UnitBuilder) error {
	builder.Reset()
	ids := make([]chunk.ID, len(refs))
	for i, ref := range refs {
		ids[i] = ref.ID
	}
	if err := d.tree.chunks.lookup(ctx, ids); err != nil {
		return err
	}
	for _, id := range ids {
		plain, err := d.tree.chunks.read(ctx, id)
		if err != nil {
			return err
		}
		builder.Add(id, plain)
	}
	return nil
}

// addLocations stages the tree's locations.
func (d *draft) addLocations(ctx context.Context) error {
	b := index.NewLocations(d.tree.ID())
	batch := make([]chunk.ID, 0, locateBatch)
	flush := func() error {
		found, err := d.catalog.Units(ctx, batch)
		if err != nil {
			return err
		}
		for _, id := range batch {
			unit, laid := d.units[id]
			if !laid {
				unit = found[id] // zero: unknown; nodes then ask for the chunk by its ID
			}
			b.Add(unit)
		}
		batch = batch[:0]
		return nil
	}
	for i := range d.tree.Extents {
		e, err := d.tree.Extent(i)
		if err != nil {
			return err
		}
		if batch = append(batch, e.ID); len(batch) == locateBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	for _, s := range d.startups {
		b.Startup(s)
	}
	plain := b.Encode()
	d.layout.Locations = chunk.Sum(plain)
	path := filepath.Join(d.tree.dir, "locations")
	wire, err := objects.CompressFile(path, plain)
	d.layout.LocationsWire = wire
	d.locations = objects.Staged{Key: objects.LocationsKey(d.layout.Locations), Path: path}
	return err
}
