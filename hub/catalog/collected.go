package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/hub/catalog/database"
)

// Collection removes chunks, layers and trees that no image needs. A publication refers to some
// that it found known, perhaps an hour before. Both are safe beside each other because a count in
// table meta rises with each removal. The ingestion remembers the count before its first look. The
// transaction that publishes reads the count, and keeps it from rising until it ends. If it has
// risen, the transaction checks all that the publication refers to.

// ErrCollected means that collection has removed something that a publication refers to. A
// publication that is prepared again stores it again.
var ErrCollected = errors.New("collection has removed something that it refers to")

const countCollections = `SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'collections'`

// Collections returns how often collection has removed something.
func (c *Catalog) Collections(ctx context.Context) (int64, error) {
	return database.Get(ctx, c.db.Read, database.Value[int64], countCollections)
}

// excludePublications begins a transaction that removes something. No publication commits before
// the transaction ends.
func excludePublications(ctx context.Context, tx database.Session) error {
	return tx.Change(ctx, ErrNotFound, `UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT)
		WHERE name = 'collections'`)
}

// excludeCollection begins a transaction that publishes. Nothing is removed before it ends. The
// error is ErrCollected if something is missing that the publication refers to.
func excludeCollection(ctx context.Context, tx database.Session, p *Publication) error {
	now, err := database.Get(ctx, tx, database.Value[int64], countCollections+tx.Share)
	if err != nil || now == p.Collections {
		return err
	}
	for _, need := range p.needs() {
		for batch := range slices.Chunk(need.keys, lookupBatch) {
			found, err := database.Get(ctx, tx, database.Value[int],
				`SELECT COUNT(*) FROM `+need.table+` WHERE `+need.column+` IN `+
					database.Places(1, len(batch)), batch...)
			if err != nil {
				return err
			}
			if found < len(batch) {
				return fmt.Errorf("%w: %d %s", ErrCollected, len(batch)-found, need.table)
			}
		}
	}
	return nil
}

// need are rows of a table that have to exist.
type need struct {
	table, column string
	keys          []any // each once
}

// needs returns the rows to which a publication refers and that it does not add.
func (p *Publication) needs() []need {
	layers, chunks := need{table: "layers", column: "diff_id"}, need{table: "chunks", column: "n"}
	packs, trees := need{table: "packs", column: "id"}, need{table: "trees", column: "tree"}
	chains := need{table: "chains", column: "chain"}
	added, known := map[string]bool{"": true}, map[int64]bool{} // the config has no diffID
	for _, l := range p.Layers {
		added[l.DiffID] = true
		for _, n := range l.Known {
			if !known[n] {
				known[n] = true
				chunks.keys = append(chunks.keys, n)
			}
		}
	}
	for _, b := range p.Blobs {
		if !added[b.DiffID] {
			added[b.DiffID] = true
			layers.keys = append(layers.keys, b.DiffID)
		}
	}
	for _, id := range p.Located {
		packs.keys = append(packs.keys, id[:])
	}
	if p.KnownTree {
		trees.keys = []any{p.Tree.ID[:]}
	}
	if p.Image == 0 {
		chains.keys = []any{p.Statement.Chain}
	}
	return []need{layers, chunks, packs, trees, chains}
}
