package catalog

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
)

// lookupBatch is the number of chunks, or of other keys, in one query. More would not be faster,
// and databases limit the number of arguments.
const lookupBatch = 500

// Numbers returns the numbers of chunks. It leaves out chunks that the catalog does not have.
func (c *Catalog) Numbers(ctx context.Context, ids []chunk.ID) (map[chunk.ID]int64, error) {
	return numbersOf(ctx, c.db.Read, ids)
}

func numbersOf(ctx context.Context, in database.Session, ids []chunk.ID) (map[chunk.ID]int64, error) {
	return lookup(ctx, in, ids, database.KeyValue[chunk.ID, int64], `SELECT c.id, c.n FROM chunks c WHERE c.id IN `)
}

// Units returns the units of chunks. It leaves out chunks that the catalog does not have.
func (c *Catalog) Units(ctx context.Context, ids []chunk.ID) (map[chunk.ID]chunk.Unit, error) {
	fields := func(id *chunk.ID, u *chunk.Unit) []any { return []any{id, &u.Pack, &u.N} }
	return lookup(ctx, c.db.Read, ids, fields, `SELECT c.id, p.id, u.place
		FROM chunks c JOIN units u ON u.n = c.unit JOIN packs p ON p.n = u.pack WHERE c.id IN `)
}

// lookup returns rows of chunks by the chunks' IDs. It leaves out chunks that the catalog does not
// have. The list of IDs is added at the end of query.
func lookup[V any](
	ctx context.Context, in database.Session, ids []chunk.ID, fields func(*chunk.ID, *V) []any, query string,
) (map[chunk.ID]V, error) {
	found := map[chunk.ID]V{}
	for batch := range slices.Chunk(ids, lookupBatch) {
		args := make([]any, len(batch))
		for i := range batch {
			args[i] = batch[i][:]
		}
		some, err := database.Map(ctx, in, fields, query+database.Places(1, len(batch)), args...)
		if err != nil {
			return nil, err
		}
		maps.Copy(found, some)
	}
	return found, nil
}

// layerChunks is the set of a layer's chunks, encoded by package numberset.
type layerChunks struct {
	diffID string
	chunks []byte
}

// layersChunks reads the sets of chunks of all layers.
func layersChunks(ctx context.Context, in database.Session) iter.Seq2[layerChunks, error] {
	return database.Rows(ctx, in, func(l *layerChunks) []any { return []any{&l.diffID, &l.chunks} },
		`SELECT diff_id, chunks FROM layers`)
}

// Unit returns the unit that holds a chunk, or ErrNotFound.
func (c *Catalog) Unit(ctx context.Context, id chunk.ID) (chunk.Unit, error) {
	units, err := c.Units(ctx, []chunk.ID{id})
	if err != nil {
		return chunk.Unit{}, err
	}
	unit, found := units[id]
	if !found {
		return chunk.Unit{}, fmt.Errorf("chunk %s: %w", id.Short(), ErrNotFound)
	}
	return unit, nil
}

// HasPack reports whether the catalog has a pack, a startup pack or a rewritten pack.
func (c *Catalog) HasPack(ctx context.Context, id chunk.ID) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool], `SELECT EXISTS (SELECT 1 FROM packs WHERE id = ?)
		OR EXISTS (SELECT 1 FROM startup_packs WHERE id = ?)
		OR EXISTS (SELECT 1 FROM rewritten_packs WHERE id = ?)`, id[:], id[:], id[:])
}

// HasTree reports whether the catalog has a tree.
func (c *Catalog) HasTree(ctx context.Context, id chunk.ID) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM trees WHERE tree = ?)`, id[:])
}
