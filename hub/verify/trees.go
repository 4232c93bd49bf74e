package verify

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// checkTrees checks the statements, indexes and layouts of the image's chains that have trees.
func (v *verification) checkTrees(ctx context.Context) error {
	for _, l := range v.layers {
		statement, err := v.catalog.Statement(ctx, l.Chain)
		if errors.Is(err, catalog.ErrNotFound) && l.Number < l.Of {
			continue
		}
		if err != nil {
			return err
		}
		what := ""
		if l.Number < l.Of {
			what = fmt.Sprintf("the first %d layers: ", l.Number)
		}
		for _, key := range v.keys {
			if err := statement.Verify(l.Chain, []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}); err != nil {
				v.found.add("%sstatement about chain %s: %v", what, l.Chain, err)
			}
		}
		if err := v.checkIndex(ctx, what, statement.Tree); err != nil {
			return err
		}
	}
	return nil
}

// readIndex reads and verifies an index object. It writes the extent map to file.
func (v *verification) readIndex(ctx context.Context, id chunk.ID, file *os.File) (*index.Map, error) {
	plain, err := v.objects.OpenPlain(ctx, objects.IndexKey(id))
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	if _, err := index.Receive(plain, id, io.NewOffsetWriter(file, 0), io.Discard); err != nil {
		return nil, err
	}
	return index.OpenMap(file, id, index.NewPages(1)) // read from beginning to end
}

// layoutTries bounds the checks of a layout that changes during each of them.
const layoutTries = 5

// checkIndex checks a tree's index and its layout: startup packs and locations.
func (v *verification) checkIndex(ctx context.Context, what string, id chunk.ID) error {
	file, err := os.Create(filepath.Join(v.dir, "map"))
	if err != nil {
		return err
	}
	defer file.Close()
	extents, err := away.Retry(ctx, v.isAway, func() (*index.Map, error) { return v.readIndex(ctx, id, file) })
	if err != nil {
		return v.note(ctx, what+"index", err)
	}
	for range layoutTries {
		layout, err := v.catalog.Starts.Layout(ctx, id)
		if err != nil {
			return err
		}
		try := *v
		try.found = &problems{}
		if err := try.checkLayout(ctx, what, &layout, extents); err != nil {
			return err
		}
		now, err := v.catalog.Starts.Layout(ctx, id)
		if err != nil {
			return err
		}
		if now.Locations == layout.Locations && now.Moved == layout.Moved { // otherwise it has changed meanwhile
			for _, problem := range try.found.list {
				v.found.add("%s", problem)
			}
			return nil
		}
	}
	return nil // a layout that changes again and again cannot be checked
}

// checkLayout checks a tree's startup packs, and compares its locations with them and the catalog.
// If chunks have moved, it reads the units that only the locations name.
func (v *verification) checkLayout(
	ctx context.Context, what string, layout *catalog.Layout, extents *index.Map,
) error {
	startup, bad, err := v.checkStartups(ctx, what, layout)
	if err != nil {
		return err
	}
	locations, err := away.Retry(ctx, v.isAway, func() (*index.Locations, error) {
		return v.objects.ReadLocations(ctx, layout.Locations, layout.Tree, extents.Extents)
	})
	if err != nil {
		return v.note(ctx, what+"locations", err)
	}
	wrong := 0
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
		moved := map[chunk.Unit][]chunk.ID{}
		for i, id := range ids {
			unit, err := locations.Unit(at + int64(i))
			switch want := cmp.Or(startup[id], known[id]); {
			case err != nil:
				wrong++
			case unit == want || bad[unit.Pack]:
			case layout.Moved:
				moved[unit] = append(moved[unit], id)
			default:
				wrong++
			}
		}
		missing, err := v.checkMoved(ctx, what, moved)
		if err != nil {
			return err
		}
		wrong += missing
	}
	if wrong > 0 {
		v.found.add("%slocations: %d of %d differ from the catalog", what, wrong, extents.Extents)
	}
	return nil
}

// checkMoved reads units that the catalog does not name for these chunks. It returns the number of
// chunks that nodes would not find there.
func (v *verification) checkMoved(
	ctx context.Context, what string, units map[chunk.Unit][]chunk.ID,
) (missing int, err error) {
	for at, ids := range units {
		decoded, err := v.readUnit(ctx, at)
		if err != nil {
			missing += len(ids)
			if err := v.note(ctx, fmt.Sprintf("%sunit %s of the locations", what, at), err); err != nil {
				return missing, err
			}
			continue
		}
		for _, id := range ids {
			if _, err := decoded.Lookup(id); err != nil {
				missing++
			}
		}
	}
	return missing, nil
}

// checkStartups reads the startup packs of a tree. It returns the unit of each of their chunks, and
// the packs that cannot be read. No data is lost with such packs: other packs have the chunks, too.
func (v *verification) checkStartups(ctx context.Context, what string, layout *catalog.Layout) (
	units map[chunk.ID]chunk.Unit, bad map[chunk.ID]bool, err error) {
	units, bad = map[chunk.ID]chunk.Unit{}, map[chunk.ID]bool{}
	for _, p := range layout.Packs {
		if err := v.checkStartup(ctx, p.ID, units); err != nil {
			bad[p.ID] = true
			if err := v.note(ctx, fmt.Sprintf("%sstartup pack %s", what, p.ID), err); err != nil {
				return nil, nil, err
			}
		}
	}
	return units, bad, nil
}

// checkStartup verifies every chunk of a pack and adds its unit to units.
func (v *verification) checkStartup(ctx context.Context, id chunk.ID, units map[chunk.ID]chunk.Unit) error {
	n, err := away.Retry(ctx, v.isAway, func() (int, error) { return v.objects.CountUnits(ctx, id) })
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
