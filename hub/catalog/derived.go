package catalog

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
)

// Derived is a tree that was made on request, of a chain that is not the top of an image. If it is
// removed, it can be made again.
type Derived struct {
	Tree, Locations chunk.ID
	stored          int64 // bytes of its index and locations
}

// derived selects the derived trees that nobody holds, the most recently used ones first. Each is
// the tree of a chain of an image, and not the top of any image. It has no startup packs, traces
// and recordings, which could not be made again. A held tree is not selected: its image may be
// removed, and then the statement about the tree is all that keeps its chain and its chunks for the
// holders. Nor is a tree that no image has any more, which nobody could make again.
var derived = `SELECT t.tree, l.locations, t.index_wire + l.wire FROM trees t JOIN layouts l ON l.tree = t.tree
	WHERE NOT EXISTS (SELECT 1 FROM statements s JOIN image_blobs b ON b.chain = s.chain WHERE s.tree = t.tree
		AND b.position = (SELECT max(position) FROM image_blobs WHERE image = b.image))
	AND EXISTS (SELECT 1 FROM statements s JOIN image_blobs b ON b.chain = s.chain WHERE s.tree = t.tree)
	AND NOT EXISTS (SELECT 1 FROM startups x WHERE x.tree = t.tree) AND NOT EXISTS (SELECT 1 FROM traces x
		WHERE x.tree = t.tree)
	AND NOT EXISTS (SELECT 1 FROM recordings x WHERE x.tree = t.tree) AND NOT EXISTS (SELECT 1 FROM formers x
		WHERE x.tree = t.tree)
	AND NOT ` + isHeld("t.tree") + ` ORDER BY l.used DESC, t.tree`

func (d *Derived) fields() []any { return []any{&d.Tree, &d.Locations, &d.stored} }

// SurplusDerived returns the derived trees to remove. At most maxTrees derived trees that nobody
// holds stay, with at most maxBytes bytes: the most recently used ones.
func (c *Catalog) SurplusDerived(ctx context.Context, maxTrees int, maxBytes int64) (surplus []Derived, err error) {
	kept, bytes := 0, int64(0)
	for d, err := range database.Rows(ctx, c.db.Read, (*Derived).fields, derived) {
		if err != nil {
			return nil, fmt.Errorf("find derived trees: %w", err)
		}
		if kept++; kept > maxTrees || bytes+d.stored > maxBytes {
			surplus = append(surplus, d)
		} else {
			bytes += d.stored
		}
	}
	return surplus, nil
}

// ForgetDerived removes trees whose objects are claimed, except those that are no unheld derived
// trees any more: one may have become the top of an image meanwhile, or a node may hold it.
func (c *Catalog) ForgetDerived(ctx context.Context, claim Claim, surplus []Derived) error {
	err := c.db.Update(ctx, "remove derived trees", func(tx database.Session) error {
		if err := excludePublications(ctx, tx); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		now, err := database.List(ctx, tx, (*Derived).fields, derived)
		if err != nil {
			return err
		}
		still := map[chunk.ID]bool{}
		for _, d := range now {
			still[d.Tree] = true
		}
		for _, d := range surplus {
			if !still[d.Tree] {
				continue
			}
			for _, table := range []string{"statements", "layouts", "trees"} {
				if err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE tree = ?`, d.Tree[:]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil {
		c.changes.Add(1)
	}
	return err
}
