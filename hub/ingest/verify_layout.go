package ingest

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// layoutTries is how often a tree's layout is checked that changes meanwhile.
const layoutTries = 5

// checkIndex reads a tree's index and how it is laid out: its startup packs and
// locations.
func (v *verification) checkIndex(ctx context.Context, what string, id chunk.ID) error {
	extents, err := v.readIndex(ctx, id)
	if err != nil {
		return v.note(ctx, what+"index", err)
	}
	defer extents.close()
	for range layoutTries {
		layout, err := v.catalog.Layout(ctx, id)
		if err != nil {
			return err
		}
		try := *v
		try.found = &findings{}
		if err := try.checkLayout(ctx, what, &layout, extents); err != nil {
			return err
		}
		if len(try.found.list) > 0 {
			now, err := v.catalog.Layout(ctx, id)
			if err != nil {
				return err
			}
			if now.Locations != layout.Locations {
				continue // another has taken its place
			}
		}
		for _, problem := range try.found.list {
			v.found.add("%s", problem)
		}
		return nil
	}
	return nil // of something that is made anew all the time nothing is known to be wrong
}

// checkLayout reads the startup packs of a tree, and compares where its locations say
// that chunks are with them and the catalog.
func (v *verification) checkLayout(ctx context.Context, what string, layout *catalog.Layout, extents *extentFile) error {
	startup, err := v.checkStartups(ctx, what, layout)
	if err != nil {
		return err
	}
	hints, err := v.readLocations(ctx, layout, extents)
	if err != nil {
		return v.note(ctx, what+"locations", err)
	}
	strange := 0
	for at := int64(0); at < extents.Extents; at += batchChunks {
		var ids []chunk.ID
		for i := at; i < min(at+batchChunks, extents.Extents); i++ {
			e, err := extents.Extent(i)
			if err != nil {
				return err
			}
			ids = append(ids, e.ID)
		}
		known, err := v.catalog.Units(ctx, ids)
		if err != nil {
			return err
		}
		for i, chunk := range ids {
			hint, err := hints.Unit(at + int64(i))
			if want := startup.unit(chunk, known[chunk]); err != nil || hint != want && !startup.bad[hint.Pack] {
				strange++
			}
		}
	}
	if strange > 0 {
		v.found.add("%slocations: %d of %d differ from the catalog", what, strange, extents.Extents)
	}
	return nil
}

// startupUnits says what was found in the startup packs of a tree.
type startupUnits struct {
	units map[chunk.ID]chunk.Unit
	bad   map[chunk.ID]bool // packs that cannot be read, which is said
}

// unit returns where a chunk should be looked for that lies at other, too.
func (s *startupUnits) unit(id chunk.ID, other chunk.Unit) chunk.Unit {
	if u, there := s.units[id]; there {
		return u
	}
	return other
}

// checkStartups reads the startup packs of a tree. Nothing is lost with them, as
// other packs have their chunks too.
func (v *verification) checkStartups(ctx context.Context, what string, layout *catalog.Layout) (*startupUnits, error) {
	found := &startupUnits{units: map[chunk.ID]chunk.Unit{}, bad: map[chunk.ID]bool{}}
	for _, p := range layout.Packs {
		if err := v.checkStartup(ctx, p.ID, found.units); err != nil {
			found.bad[p.ID] = true
			if err := v.note(ctx, fmt.Sprintf("%sstartup pack %s", what, p.ID), err); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// checkStartup verifies every chunk of a pack, and notes in which unit it is.
func (v *verification) checkStartup(ctx context.Context, id chunk.ID, units map[chunk.ID]chunk.Unit) error {
	n, err := v.objects.CountUnits(ctx, id)
	if err != nil {
		return err
	}
	for i := range n {
		at := chunk.Unit{Pack: id, N: uint32(i)}
		decoded, err := v.readUnit(ctx, at)
		if err != nil {
			return fmt.Errorf("unit %d: %w", i, err)
		}
		for c := range decoded.Len() {
			if _, err := decoded.Chunk(c); err != nil {
				return fmt.Errorf("unit %d: %w", i, err)
			}
			units[decoded.Ref(c).ID] = at
		}
	}
	return nil
}

func (v *verification) readLocations(ctx context.Context, layout *catalog.Layout, extents *extentFile) (*index.Locations, error) {
	sum := layout.Locations
	z, closeAll, err := v.decompress(ctx, objects.LocationsKey(sum))
	if err != nil {
		return nil, err
	}
	defer closeAll()
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	if got := chunk.Sum(b); got != sum {
		return nil, fmt.Errorf("their digest is %s, the catalog says %s", got.Short(), sum.Short())
	}
	return index.OpenLocations(bytes.NewReader(b), int64(len(b)), layout.Tree, extents.Extents)
}
