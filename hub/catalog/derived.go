package catalog

import (
	"context"
	"database/sql"
	"fmt"

	"lighter/format/chunk"
)

// Derived is a tree that was made on request: of a chain that is not the top of an image.
type Derived struct {
	Tree, Locations chunk.ID
	stored          int64 // bytes of its index and locations
}

// derived selects the trees that are not the top of an image and have neither startup packs nor
// traces, the most recently used first.
const derived = `SELECT t.tree, l.locations, t.index_wire + l.wire FROM trees t JOIN layouts l ON l.tree = t.tree
	WHERE NOT EXISTS (SELECT 1 FROM statements s JOIN image_blobs b ON b.chain = s.chain WHERE s.tree = t.tree
		AND b.position = (SELECT max(position) FROM image_blobs WHERE image = b.image))
	AND NOT EXISTS (SELECT 1 FROM startups x WHERE x.tree = t.tree) AND NOT EXISTS (SELECT 1 FROM traces x
		WHERE x.tree = t.tree)
	AND NOT EXISTS (SELECT 1 FROM recordings x WHERE x.tree = t.tree) AND NOT EXISTS (SELECT 1 FROM formers x
		WHERE x.tree = t.tree)
	ORDER BY l.used DESC, t.tree`

// SurplusDerived returns the derived trees to evict: all but the most recently used ones, of which
// most trees and limit bytes may stay.
func (c *Catalog) SurplusDerived(ctx context.Context, most int, limit int64) (surplus []Derived, err error) {
	kept, bytes := 0, int64(0)
	err = each(ctx, c.read, func(rows *sql.Rows) error {
		var tree, locations []byte
		var d Derived
		if err := rows.Scan(&tree, &locations, &d.stored); err != nil {
			return err
		}
		d.Tree, d.Locations = chunk.ID(tree), chunk.ID(locations)
		if kept++; kept > most || bytes+d.stored > limit {
			surplus = append(surplus, d)
			return nil
		}
		bytes += d.stored
		return nil
	}, derived)
	if err != nil {
		return nil, fmt.Errorf("find derived trees: %w", err)
	}
	return surplus, nil
}

// ForgetDerived removes trees, except those that have become the top of an image meanwhile.
func (c *Catalog) ForgetDerived(ctx context.Context, surplus []Derived) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		still := map[chunk.ID]bool{}
		err := each(ctx, tx, func(rows *sql.Rows) error {
			var tree, locations []byte
			var stored int64
			err := rows.Scan(&tree, &locations, &stored)
			if err == nil {
				still[chunk.ID(tree)] = true
			}
			return err
		}, derived)
		if err != nil {
			return err
		}
		for _, d := range surplus {
			if !still[d.Tree] {
				continue
			}
			for _, table := range []string{"statements", "layouts", "trees"} {
				if _, err := tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE tree = ?`, d.Tree[:]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove derived trees: %w", err)
	}
	c.changes.Add(1)
	return nil
}
