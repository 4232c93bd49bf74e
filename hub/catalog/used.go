package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
)

// PackBytes returns the bytes of all packs except startup packs.
func (c *Starts) PackBytes(ctx context.Context) (int64, error) {
	return database.Get(ctx, c.db.Read, database.Value[int64], `SELECT COALESCE(SUM(size), 0) FROM packs`)
}

// compareIDs orders IDs by their bytes.
func compareIDs(a, b chunk.ID) int { return bytes.Compare(a[:], b[:]) }

// Used records when trees were last used. If a tree has lost its startup packs before the time
// lost, it may have some again, and a job is queued that makes its layout.
func (c *Starts) Used(ctx context.Context, trees map[chunk.ID]time.Time, lost time.Time) error {
	return c.db.Update(ctx, "record use of trees", func(tx database.Session) error {
		for _, tree := range slices.SortedFunc(maps.Keys(trees), compareIDs) { // in the order in which others lock them
			at := trees[tree]
			if err := tx.Exec(ctx, `UPDATE layouts SET used = ? WHERE tree = ? AND used < ?`,
				at.UnixMilli(), tree[:], at.UnixMilli()); err != nil {
				return fmt.Errorf("tree %s: %w", tree.Short(), err)
			}
			err := tx.Change(ctx, errKnown, `UPDATE layouts SET lost = 0 WHERE tree = ? AND lost > 0 AND lost < ?`,
				tree[:], lost.UnixMilli())
			if err == nil {
				err = requestLayout(ctx, tx, tree, 0)
			}
			if err != nil && !errors.Is(err, errKnown) {
				return fmt.Errorf("tree %s: %w", tree.Short(), err)
			}
		}
		return nil
	})
}

// Lose takes the startup packs from the least recently used trees, until the startup packs of all
// other trees have at most limit bytes. It queues jobs that make the layouts of the least recently
// used trees without startup packs, and returns these trees.
func (c *Starts) Lose(ctx context.Context, limit int64) (lost []chunk.ID, err error) {
	err = c.db.Update(ctx, "find least recently used startup packs", func(tx database.Session) error {
		live, err := database.Get(ctx, tx, database.Value[int64],
			`SELECT COALESCE(SUM(size), 0) FROM startup_packs WHERE retired = 0`)
		if err != nil || live <= limit {
			return err
		}
		if lost, err = leastUsed(ctx, tx, limit); err != nil {
			return err
		}
		for _, tree := range lost {
			if err := tx.Exec(ctx, `UPDATE layouts SET lost = `+tx.Clock+` WHERE tree = ?`, tree[:]); err != nil {
				return err
			}
			if err := requestLayout(ctx, tx, tree, 0); err != nil {
				return err
			}
		}
		return nil
	})
	return lost, err
}

// leastUsed returns the least recently used trees: as many as it takes, so that the startup packs
// of all others have at most limit bytes.
func leastUsed(ctx context.Context, tx database.Session, limit int64) (trees []chunk.ID, err error) {
	type use struct {
		tree, pack chunk.ID
		size       int64
	}
	uses, err := database.List(ctx, tx, func(u *use) []any { return []any{&u.tree, &u.pack, &u.size} },
		`SELECT s.tree, p.id, p.size FROM startups s JOIN startup_packs p ON p.id = s.pack
			JOIN layouts l ON l.tree = s.tree WHERE l.lost = 0 ORDER BY l.used, l.tree`)
	users, live := map[chunk.ID]int{}, int64(0) // trees by pack; bytes of all packs
	for _, u := range uses {
		if users[u.pack]++; users[u.pack] == 1 {
			live += u.size
		}
	}
	for _, u := range uses {
		if len(trees) == 0 || trees[len(trees)-1] != u.tree {
			if live <= limit {
				break
			}
			trees = append(trees, u.tree)
		}
		if users[u.pack]--; users[u.pack] == 0 {
			live -= u.size
		}
	}
	return trees, err
}
