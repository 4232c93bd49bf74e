package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/hub/catalog/database"
)

// A collection removes chunks, layers and trees that no image needs. An ingestion may have found
// some of them in the catalog, perhaps an hour before, so that its publication refers to them. The
// count of removals in table meta makes it safe that both run at the same time. Each transaction
// that removes such rows raises the count. An ingestion reads the count before its first look into
// the catalog. The transaction that publishes reads the count again, and keeps it from rising until
// it ends. If the count has risen since, that transaction checks that all rows exist to which the
// publication refers.

// A repair may move chunks to other packs, and may keep the old pack. It raises a second count, of
// moves. If the locations of a publication, a layout or a renewal may name places from before a
// move, the next collection checks them.

// Collections has two counts: how often rows were removed to which a publication may refer, and how
// often chunks were moved to other packs.
type Collections struct{ Removals, Moves int64 }

func (c *Collections) fields() []any { return []any{&c.Removals, &c.Moves} }

// ErrCollected means that a collection has removed something to which a publication refers. The
// image has to be ingested again, which stores what was removed.
var ErrCollected = errors.New("a collection has removed something that the publication refers to")

const (
	countCollections = `SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'collections'`
	countMoves       = `SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'moves'`
)

// Collections returns the counts.
func (c *Catalog) Collections(ctx context.Context) (Collections, error) {
	return database.Get(ctx, c.db.Read, (*Collections).fields, `SELECT (`+countCollections+`), (`+countMoves+`)`)
}

// excludePublications begins a transaction that removes rows to which a publication may refer. No
// publication commits between this call and the end of the transaction.
func excludePublications(ctx context.Context, tx database.Session) error {
	return tx.Change(ctx, ErrNotFound, `UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT)
		WHERE name = 'collections'`)
}

// lockCollections returns the counts. They stay the same until the transaction ends.
func lockCollections(ctx context.Context, tx database.Session) (now Collections, err error) {
	if now.Removals, err = database.Get(ctx, tx, database.Value[int64], countCollections+tx.Share); err != nil {
		return now, err
	}
	now.Moves, err = database.Get(ctx, tx, database.Value[int64], countMoves)
	return now, err
}

// excludeCollection begins a transaction that publishes. Nothing is removed before the transaction
// ends. The error is ErrCollected if something is missing that the publication refers to. moved
// reports whether chunks got other places since the publication was begun.
func excludeCollection(ctx context.Context, tx database.Session, p *Publication) (moved bool, err error) {
	now, err := lockCollections(ctx, tx)
	if err != nil || now == p.Collections {
		return false, err
	}
	for _, need := range p.needs() {
		for batch := range slices.Chunk(need.keys, lookupBatch) {
			found, err := database.Get(ctx, tx, database.Value[int],
				`SELECT COUNT(*) FROM `+need.table+` WHERE `+need.column+` IN `+
					database.Places(1, len(batch)), batch...)
			if err != nil {
				return false, err
			}
			if found < len(batch) {
				return false, fmt.Errorf("%w: %d %s", ErrCollected, len(batch)-found, need.table)
			}
		}
	}
	return now.Moves != p.Collections.Moves, nil
}

// need is a set of rows of one table that have to exist.
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
