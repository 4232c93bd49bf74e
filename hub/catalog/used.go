package catalog

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"lighter/format/chunk"
)

// PackBytes returns the bytes of all packs except startup packs.
func (c *Catalog) PackBytes(ctx context.Context) (n int64, err error) {
	if err = c.read.QueryRowContext(ctx, `SELECT COALESCE(SUM(size), 0) FROM packs`).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the catalog: %w", err)
	}
	return n, nil
}

// Used records when trees were last used. Trees that lost their startup packs before the time lost
// may have some again, and become due.
func (c *Catalog) Used(ctx context.Context, trees map[chunk.ID]time.Time, lost time.Time) error {
	return c.update(ctx, func(tx *sql.Tx) error {
		now := time.Now().UnixMilli()
		for tree, at := range trees {
			if _, err := tx.ExecContext(ctx, `UPDATE layouts SET used = ?
				WHERE tree = ? AND used < ?`, at.UnixMilli(), tree[:], at.UnixMilli()); err != nil {
				return fmt.Errorf("record use of tree %s: %w", tree.Short(), err)
			}
			if _, err := tx.ExecContext(ctx, `UPDATE layouts
				SET lost = 0, due = CASE WHEN due = 0 THEN ? ELSE due END, changes = changes + 1, tries = 0
				WHERE tree = ? AND lost > 0 AND lost < ?`, now, tree[:], lost.UnixMilli()); err != nil {
				return fmt.Errorf("record use of tree %s: %w", tree.Short(), err)
			}
		}
		return nil
	})
}

// Lose selects the least recently used trees, until the startup packs of all others take at most
// limit bytes. It makes them due, to be laid out without startup packs, and returns them.
func (c *Catalog) Lose(ctx context.Context, limit int64) (lost []chunk.ID, err error) {
	err = c.update(ctx, func(tx *sql.Tx) error {
		var live int64
		if err := tx.QueryRowContext(ctx, `SELECT COALESCE(SUM(size), 0) FROM startup_packs
			WHERE retired = 0`).Scan(&live); err != nil || live <= limit {
			return err
		}
		if lost, err = leastUsed(ctx, tx, limit); err != nil {
			return err
		}
		now := time.Now().UnixMilli()
		for _, tree := range lost {
			if _, err := tx.ExecContext(ctx, `UPDATE layouts SET lost = ?, due = ?, changes = changes + 1, tries = 0
				WHERE tree = ?`, now, now, tree[:]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find least recently used startup packs: %w", err)
	}
	return lost, nil
}

// leastUsed returns the least recently used trees, so that the startup packs of all others take at
// most limit bytes.
func leastUsed(ctx context.Context, tx *sql.Tx, limit int64) (trees []chunk.ID, err error) {
	type pack struct {
		id   chunk.ID
		size int64
	}
	packs, users := map[chunk.ID][]pack{}, map[chunk.ID]int{} // packs by tree, number of trees by pack
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
		if users[p.id]++; users[p.id] == 1 {
			live += p.size
		}
		return nil
	}, `SELECT s.tree, p.id, p.size FROM startups s JOIN startup_packs p ON p.id = s.pack
		JOIN layouts l ON l.tree = s.tree
		WHERE l.lost = 0 ORDER BY l.used, l.tree`)
	for _, tree := range order {
		if live <= limit {
			break
		}
		trees = append(trees, tree)
		for _, p := range packs[tree] {
			if users[p.id]--; users[p.id] == 0 {
				live -= p.size
			}
		}
	}
	return trees, err
}
