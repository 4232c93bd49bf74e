package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"lighter/format/chunk"
)

// PackBytes returns what the packs take of which chunks are no copies: all but
// startup packs.
func (c *Catalog) PackBytes(ctx context.Context) (n int64, err error) {
	if err = c.read.QueryRowContext(ctx, `SELECT COALESCE(SUM(size), 0) FROM packs`).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the catalog: %w", err)
	}
	return n, nil
}

// Used notes when trees were used. One that has lost its startup packs before lost
// is to have some again.
func (c *Catalog) Used(ctx context.Context, trees map[chunk.ID]time.Time, lost time.Time) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		now := time.Now().UnixMilli()
		for tree, at := range trees {
			if _, err := tx.ExecContext(ctx, `UPDATE layouts SET used = ? WHERE tree = ? AND used < ?`, at.UnixMilli(), tree[:], at.UnixMilli()); err != nil {
				return fmt.Errorf("note that tree %s was used: %w", tree.Short(), err)
			}
			if _, err := tx.ExecContext(ctx, `UPDATE layouts SET lost = 0, due = CASE WHEN due = 0 THEN ? ELSE due END, changes = changes + 1, tries = 0
				WHERE tree = ? AND lost > 0 AND lost < ?`, now, tree[:], lost.UnixMilli()); err != nil {
				return fmt.Errorf("note that tree %s was used: %w", tree.Short(), err)
			}
		}
		return nil
	})
}

// Lose has the trees lose their startup packs that were used least recently, until
// those of all take no more than limit bytes: they are due to be laid out without.
// It returns these trees.
func (c *Catalog) Lose(ctx context.Context, limit int64) (lost []chunk.ID, err error) {
	err = c.update(ctx, func(tx *sql.Tx) error {
		var live int64
		if err := tx.QueryRowContext(ctx, `SELECT COALESCE(SUM(size), 0) FROM startup_packs WHERE retired = 0`).Scan(&live); err != nil || live <= limit {
			return err
		}
		if lost, err = leastUsed(ctx, tx, limit); err != nil {
			return err
		}
		now := time.Now().UnixMilli()
		for _, tree := range lost {
			if _, err := tx.ExecContext(ctx, `UPDATE layouts SET lost = ?, due = ?, changes = changes + 1, tries = 0 WHERE tree = ?`, now, now, tree[:]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for startup packs that are used least: %w", err)
	}
	return lost, nil
}

// leastUsed returns the trees without whose startup packs those of the others take
// no more than limit bytes.
func leastUsed(ctx context.Context, tx *sql.Tx, limit int64) (trees []chunk.ID, err error) {
	type pack struct {
		id   chunk.ID
		size int64
	}
	packs, having := map[chunk.ID][]pack{}, map[chunk.ID]int{} // how many trees have it
	var order []chunk.ID
	live := int64(0)
	err = each(ctx, tx, func(rows *sql.Rows) error {
		var treeID, packID []byte
		var p pack
		if err := rows.Scan(&treeID, &packID, &p.size); err != nil {
			return err
		}
		tree := chunk.ID(treeID)
		p.id = chunk.ID(packID)
		if packs[tree] == nil {
			order = append(order, tree)
		}
		packs[tree] = append(packs[tree], p)
		if having[p.id]++; having[p.id] == 1 {
			live += p.size
		}
		return nil
	}, `SELECT s.tree, p.id, p.size FROM startups s JOIN startup_packs p ON p.id = s.pack JOIN layouts l ON l.tree = s.tree
		WHERE l.lost = 0 ORDER BY l.used, l.tree`)
	for _, tree := range order {
		if live <= limit {
			break
		}
		trees = append(trees, tree)
		for _, p := range packs[tree] {
			if having[p.id]--; having[p.id] == 0 {
				live -= p.size
			}
		}
	}
	return trees, err
}
