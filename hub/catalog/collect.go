package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
)

// Garbage finds and removes the rows that no image needs. It is safe for concurrent use.
type Garbage struct{ db *database.DB }

// UnservedTree is a tree that no image has. It is removed if it is Dead: it has had no image for
// long enough, and nobody holds it.
type UnservedTree struct {
	Tree      chunk.ID
	Locations chunk.ID
	Bytes     int64     // of index and locations, compressed
	Since     time.Time // when the tree last lost an image or a holder; zero: NoteUnserved has not seen it yet
	Held      bool
	Dead      bool
	Packs     []StartupPack // those that no other tree has
	Name      string        // of its image that was removed last; empty: not known
}

// withoutImage is the condition that no image has tree t, as its top or below.
const withoutImage = `NOT EXISTS (SELECT 1 FROM statements s JOIN image_blobs b ON b.chain = s.chain
	WHERE s.tree = t.tree)`

// dead returns the condition that tree t is to be removed. The argument of the condition is a
// duration in milliseconds: the tree has lost its last image, and its last holder, longer ago.
func dead(s database.Session) string {
	return withoutImage + ` AND t.dead > 0 AND t.dead <= ` + s.Clock + ` - CAST(? AS BIGINT)
		AND NOT ` + isHeld("t.tree")
}

// NoteUnserved records, of each tree without an image, that it has none since now, if the catalog
// does not know since when: a release that did not record it has removed the image.
func (c *Garbage) NoteUnserved(ctx context.Context, l Lease) error {
	return c.db.Update(ctx, "note trees without an image", func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		return tx.Exec(ctx, `UPDATE trees AS t SET dead = `+tx.Clock+` WHERE dead = 0 AND `+withoutImage)
	})
}

// noteRemoval records that the trees of some images lose these images now. They are the images of a
// name, the first of args, that meet the condition. A tree that another image still has is
// recorded, too, and is not dead. The trees keep the name.
func noteRemoval(ctx context.Context, tx database.Session, condition string, args ...any) error {
	return tx.Exec(ctx, `UPDATE trees SET dead = `+tx.Clock+`, last_name = ? WHERE tree IN (
		SELECT s.tree FROM statements s JOIN image_blobs b ON b.chain = s.chain
		WHERE b.image IN (SELECT n FROM images WHERE name = ?`+condition+`))`, append(args[:1:1], args...)...)
}

// UnservedTrees returns the trees that no image has. A tree is dead if it lost its last image, and
// its last holder, longer than delay ago.
func (c *Garbage) UnservedTrees(ctx context.Context, delay time.Duration) ([]UnservedTree, error) {
	return c.unserved(ctx, `SELECT t.tree, l.locations, t.index_wire + l.wire, t.dead, `+isHeld("t.tree")+`,
			(`+dead(c.db.Read)+`), t.last_name
		FROM trees t JOIN layouts l ON l.tree = t.tree WHERE `+withoutImage+` ORDER BY t.dead, t.tree`,
		delay.Milliseconds())
}

// ForeseeTrees returns what UnservedTrees would return if ExpireHolders, with that age, and
// NoteUnserved ran before. It changes nothing.
func (c *Garbage) ForeseeTrees(ctx context.Context, delay, age time.Duration) ([]UnservedTree, error) {
	now := c.db.Read.Clock
	return c.unserved(ctx, `
		WITH unserved AS (SELECT t.tree, l.locations, t.index_wire + l.wire AS bytes, t.dead, t.last_name,
			`+isHeld("t.tree")+` AS held,
			EXISTS (SELECT 1 FROM held h JOIN holders o ON o.holder = h.holder
				WHERE h.tree = t.tree AND NOT (`+hasExpired(c.db.Read)+`)) AS kept
			FROM trees t JOIN layouts l ON l.tree = t.tree WHERE `+withoutImage+`),
		foreseen AS (SELECT tree, locations, bytes, kept, last_name,
			CASE WHEN dead = 0 OR held AND NOT kept THEN `+now+` ELSE dead END AS since FROM unserved)
		SELECT tree, locations, bytes, since, kept, NOT kept AND since <= `+now+` - CAST(? AS BIGINT), last_name
		FROM foreseen ORDER BY since, tree`, age.Milliseconds(), delay.Milliseconds())
}

// unserved returns the trees that a query selects, with their startup packs.
func (c *Garbage) unserved(ctx context.Context, query string, args ...any) ([]UnservedTree, error) {
	trees, err := database.List(ctx, c.db.Read, func(t *UnservedTree) []any {
		return []any{&t.Tree, &t.Locations, &t.Bytes, database.Stamp(&t.Since), &t.Held, &t.Dead, &t.Name}
	}, query, args...)
	if err != nil {
		return nil, err
	}
	for i := range trees {
		t := &trees[i]
		t.Packs, err = database.List(ctx, c.db.Read, func(p *StartupPack) []any { return []any{&p.ID, &p.Size} },
			`SELECT p.id, p.size FROM startups s JOIN startup_packs p ON p.id = s.pack WHERE s.tree = ?
				AND NOT EXISTS (SELECT 1 FROM startups o WHERE o.pack = p.id AND o.tree <> s.tree)`, t.Tree[:])
		if err != nil {
			return nil, err
		}
	}
	return trees, nil
}

// removal runs fn, which removes rows, in a transaction beside which no publication commits. The
// caller owns the job of the lease, and has claimed the objects of the rows. It deletes these
// objects afterwards.
func (c *Garbage) removal(
	ctx context.Context, what string, l Lease, claim Claim, fn func(tx database.Session) error,
) error {
	return c.db.Update(ctx, what, func(tx database.Session) error {
		if err := excludePublications(ctx, tx); err != nil {
			return err
		}
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		return fn(tx)
	})
}

// ForgetTrees removes trees, with all that is known about their starts. It leaves out trees that
// are not dead any more, or have other locations now. It returns the number of the removed trees,
// and the bytes of their objects.
func (c *Garbage) ForgetTrees(
	ctx context.Context, claim Claim, l Lease, delay time.Duration, trees []UnservedTree,
) (removed, bytes int64, err error) {
	var ids []any
	for _, t := range trees {
		ids = append(ids, t.Tree[:])
	}
	err = c.removal(ctx, "remove dead trees", l, claim, func(tx database.Session) error {
		removed, bytes = 0, 0
		for batch := range slices.Chunk(ids, lookupBatch) {
			if err := lockLayouts(ctx, tx, `tree IN `+database.Places(1, len(batch)), batch...); err != nil {
				return err
			}
		}
		for _, t := range trees {
			dead, err := database.Get(ctx, tx, database.Value[bool], `SELECT EXISTS (SELECT 1
				FROM trees t JOIN layouts l ON l.tree = t.tree
				WHERE t.tree = ? AND l.locations = ? AND `+dead(tx)+`)`,
				t.Tree[:], t.Locations[:], delay.Milliseconds())
			if err != nil {
				return err
			}
			if !dead {
				continue
			}
			packs, err := forgetTree(ctx, tx, t)
			if err != nil {
				return fmt.Errorf("tree %s: %w", t.Tree.Short(), err)
			}
			removed++
			bytes += t.Bytes + packs
		}
		return nil
	})
	return removed, bytes, err
}

// forgetTree removes a tree, and its startup packs unless another tree had them when the tree was
// found dead. If no tree has such a pack any more, the pack retires. It returns the bytes of the
// removed packs.
func forgetTree(ctx context.Context, tx database.Session, t UnservedTree) (bytes int64, err error) {
	if err := leaveStartups(ctx, tx, t.Tree); err != nil {
		return 0, err
	}
	for _, table := range []string{"traces", "recordings", "formers", "layouts", "statements", "trees"} {
		if err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE tree = ?`, t.Tree[:]); err != nil {
			return 0, err
		}
	}
	for _, p := range t.Packs {
		n, err := tx.ExecCount(ctx, `DELETE FROM startup_packs WHERE id = ?
			AND NOT EXISTS (SELECT 1 FROM startups WHERE pack = id)`, p.ID[:])
		if err != nil {
			return 0, err
		}
		if n > 0 {
			bytes += p.Size
		}
	}
	return bytes, nil
}

// unusedChains selects chains that no image and no tree has, and that have no chain above them.
const unusedChains = `SELECT c.chain FROM chains c
	WHERE NOT EXISTS (SELECT 1 FROM image_blobs b WHERE b.chain = c.chain)
	AND NOT EXISTS (SELECT 1 FROM statements s WHERE s.chain = c.chain)
	AND NOT EXISTS (SELECT 1 FROM chains above WHERE above.parent = c.chain) ORDER BY c.chain LIMIT ?`

// ForgetChains removes at most limit chains that no image and no tree has, and that have no chain
// above them. It returns their number. The chains below them may be removed by the next call.
func (c *Garbage) ForgetChains(ctx context.Context, l Lease, limit int) (removed int64, err error) {
	some, err := database.List(ctx, c.db.Read, database.Value[string], unusedChains, 1)
	if err != nil || len(some) == 0 {
		return 0, err
	}
	err = c.removal(ctx, "remove dead chains", l, Claim{}, func(tx database.Session) error {
		removed, err = tx.ExecCount(ctx, `DELETE FROM chains WHERE chain IN (`+unusedChains+`)`, limit)
		return err
	})
	return removed, err
}

// DeadLayers returns at most limit layers that no chain has.
func (c *Garbage) DeadLayers(ctx context.Context, limit int) ([]string, error) {
	return database.List(ctx, c.db.Read, database.Value[string], `SELECT l.diff_id FROM layers l
		WHERE NOT EXISTS (SELECT 1 FROM chains c WHERE c.diff_id = l.diff_id) ORDER BY l.diff_id LIMIT ?`, limit)
}

// ForgetLayers removes layers, and what is known about their blobs. It leaves out layers that a
// chain has. It returns the number of removed layers.
func (c *Garbage) ForgetLayers(ctx context.Context, claim Claim, l Lease, diffIDs []string) (removed int64, err error) {
	err = c.removal(ctx, "remove dead layers", l, claim, func(tx database.Session) error {
		removed = 0
		for _, diffID := range diffIDs {
			for _, table := range []string{"blobs", "layers"} {
				n, err := tx.ExecCount(ctx, `DELETE FROM `+table+` WHERE diff_id = ?
					AND NOT EXISTS (SELECT 1 FROM chains WHERE diff_id = ?)`, diffID, diffID)
				if err != nil {
					return err
				}
				if table == "layers" {
					removed += n
				}
			}
		}
		return nil
	})
	return removed, err
}

// Lineage has all chains, and says which of them an image or a tree has.
type Lineage struct {
	Chains map[string]Link
	Used   map[string]bool       // chains that an image has
	Trees  map[chunk.ID][]string // the chains of each tree
}

// Link is the parent and the layer of a chain.
type Link struct{ Parent, DiffID string }

// Lineage returns all chains with their uses.
func (c *Garbage) Lineage(ctx context.Context) (l Lineage, err error) {
	l = Lineage{Used: map[string]bool{}, Trees: map[chunk.ID][]string{}}
	if l.Chains, err = database.Map(ctx, c.db.Read, func(chain *string, l *Link) []any {
		return []any{chain, &l.Parent, &l.DiffID}
	}, `SELECT chain, parent, diff_id FROM chains`); err != nil {
		return l, err
	}
	for chain, err := range database.Rows(ctx, c.db.Read, database.Value[string],
		`SELECT DISTINCT chain FROM image_blobs WHERE position >= 0`) {
		if err != nil {
			return l, err
		}
		l.Used[chain] = true
	}
	type made struct {
		chain string
		tree  chunk.ID
	}
	for m, err := range database.Rows(ctx, c.db.Read, func(m *made) []any { return []any{&m.chain, &m.tree} },
		`SELECT chain, tree FROM statements`) {
		if err != nil {
			return l, err
		}
		l.Trees[m.tree] = append(l.Trees[m.tree], m.chain)
	}
	return l, nil
}

// LastCollection returns what SetLastCollection has stored, or nil.
func (c *Garbage) LastCollection(ctx context.Context) ([]byte, error) {
	text, err := database.Get(ctx, c.db.Read, database.Value[string],
		`SELECT value FROM meta WHERE name = 'collection'`)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return []byte(text), err
}

// SetLastCollection stores what a collection has done, for LastCollection.
func (c *Garbage) SetLastCollection(ctx context.Context, l Lease, body []byte) error {
	return c.db.Update(ctx, "store what the collection has done", func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		return tx.Exec(ctx, `INSERT INTO meta (name, value) VALUES ('collection', ?)
			ON CONFLICT (name) DO UPDATE SET value = excluded.value`, string(body))
	})
}
