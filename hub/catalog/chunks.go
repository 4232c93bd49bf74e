package catalog

import (
	"context"
	"database/sql"
	"fmt"

	"lighter/format/chunk"
)

// lookupBatch is the number of chunks in one query. More would not be faster, and databases limit
// the number of arguments.
const lookupBatch = 500

// Numbers returns the numbers of the known ones among the chunks.
func (c *Catalog) Numbers(ctx context.Context, ids []chunk.ID) (map[chunk.ID]int64, error) {
	found := map[chunk.ID]int64{}
	err := c.lookUp(ctx, ids, `SELECT c.id, c.n FROM chunks c WHERE c.id IN `, func(rows *sql.Rows) error {
		var id []byte
		var n int64
		if err := rows.Scan(&id, &n); err != nil {
			return err
		}
		found[chunk.ID(id)] = n
		return nil
	})
	return found, err
}

// Units returns the units of the known ones among the chunks.
func (c *Catalog) Units(ctx context.Context, ids []chunk.ID) (map[chunk.ID]chunk.Unit, error) {
	found := map[chunk.ID]chunk.Unit{}
	err := c.lookUp(ctx, ids, `
		SELECT c.id, p.id, u.place FROM chunks c JOIN units u ON u.n = c.unit JOIN packs p ON p.n = u.pack
			WHERE c.id IN `,
		func(rows *sql.Rows) error {
			var id, pack []byte
			var place uint32
			if err := rows.Scan(&id, &pack, &place); err != nil {
				return err
			}
			found[chunk.ID(id)] = chunk.Unit{Pack: chunk.ID(pack), N: place}
			return nil
		})
	return found, err
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

func (c *Catalog) lookUp(ctx context.Context, ids []chunk.ID, query string, scan func(*sql.Rows) error) error {
	for len(ids) > 0 {
		batch := ids[:min(len(ids), lookupBatch)]
		ids = ids[len(batch):]
		args := make([]any, len(batch))
		for i := range batch {
			args[i] = batch[i][:]
		}
		if err := each(ctx, c.read, scan, query+places(1, len(batch)), args...); err != nil {
			return err
		}
	}
	return nil
}

// HasPack reports whether a pack is known. Startup packs do not count.
func (c *Catalog) HasPack(ctx context.Context, id chunk.ID) (bool, error) {
	return c.exists(ctx, `SELECT EXISTS (SELECT 1 FROM packs WHERE id = ?)`, id[:])
}

// HasTree reports whether a tree is known.
func (c *Catalog) HasTree(ctx context.Context, id chunk.ID) (bool, error) {
	return c.exists(ctx, `SELECT EXISTS (SELECT 1 FROM trees WHERE tree = ?)`, id[:])
}

// HasStatements reports whether the hub has signed any statement.
func (c *Catalog) HasStatements(ctx context.Context) (bool, error) {
	return c.exists(ctx, `SELECT EXISTS (SELECT 1 FROM statements)`)
}

func (c *Catalog) exists(ctx context.Context, query string, args ...any) (bool, error) {
	var yes bool
	if err := c.read.QueryRowContext(ctx, query, args...).Scan(&yes); err != nil {
		return false, fmt.Errorf("read the catalog: %w", err)
	}
	return yes, nil
}
