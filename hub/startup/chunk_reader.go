package startup

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/pack"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

// chunkReader reads chunks from the hub's own packs. It caches the last decoded units, since the
// next chunk often lies in the same unit. It is for one goroutine.
type chunkReader struct {
	catalog *catalog.Catalog
	objects *objects.Store
	where   map[chunk.ID]chunk.Unit // the units of chunks that were looked up
	units   map[chunk.Unit]*pack.Unit
	order   []chunk.Unit // the keys of units, the oldest first
	held    int64        // memory of units, in bytes
}

func newChunkReader(c *catalog.Catalog, o *objects.Store) *chunkReader {
	return &chunkReader{catalog: c, objects: o, where: map[chunk.ID]chunk.Unit{}, units: map[chunk.Unit]*pack.Unit{}}
}

// lookup looks up the units of many chunks together, which is faster than one by one.
func (r *chunkReader) lookup(ctx context.Context, ids []chunk.ID) error {
	found, err := r.catalog.Units(ctx, ids)
	if err != nil {
		return err
	}
	if len(r.where)+len(found) > maxLookedUp {
		clear(r.where)
	}
	for id, unit := range found {
		r.where[id] = unit
	}
	return nil
}

// read returns the verified plain bytes of a chunk. The caller must not change them.
func (r *chunkReader) read(ctx context.Context, id chunk.ID) ([]byte, error) {
	if _, known := r.where[id]; !known {
		if err := r.lookup(ctx, []chunk.ID{id}); err != nil {
			return nil, err
		}
	}
	where, known := r.where[id]
	if !known {
		return nil, fmt.Errorf("chunk %s is in no pack", id.Short())
	}
	unit := r.units[where]
	if unit == nil {
		var err error
		if unit, err = r.fetch(ctx, where); err != nil {
			return nil, fmt.Errorf("unit %s: %w", where, err)
		}
	}
	return unit.Lookup(id)
}

func (r *chunkReader) fetch(ctx context.Context, where chunk.Unit) (*pack.Unit, error) {
	unit, err := r.objects.ReadUnit(ctx, where)
	if err != nil {
		return nil, err
	}
	for r.held += unit.Memory(); r.held > maxHeldBytes && len(r.order) > 0; r.order = r.order[1:] {
		r.held -= r.units[r.order[0]].Memory()
		delete(r.units, r.order[0])
	}
	r.units[where] = unit
	r.order = append(r.order, where)
	return unit, nil
}
