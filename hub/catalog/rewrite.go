package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
)

// Rewriting says that the needed chunks of some packs were copied into a new pack, which is stored
// already.
type Rewriting struct {
	From  []PackUse
	To    Pack
	Units []UnitUse // the units of To, in their order; N is the old unit's, and Needed are all chunks that are copied
	Whole []bool    // by unit: all chunks of the old unit are copied
	Claim Claim     // of To
}

// Rewrite replaces packs by a new one, which has their needed chunks. Their other chunks are
// removed. The objects of the old packs stay until DropRewritten, because locations may name them
// until they are renewed. The error is ErrChanged if a chunk is needed now that was not copied.
func (c *Garbage) Rewrite(ctx context.Context, l Lease, m *Marks, r *Rewriting) error {
	return c.removal(ctx, "rewrite packs", l, r.Claim, func(tx database.Session) error {
		if err := m.refresh(ctx, tx); err != nil {
			return err
		}
		if err := r.check(ctx, tx, m); err != nil {
			return err
		}
		n, err := reserve(ctx, tx, "packs", 1)
		if err != nil {
			return err
		}
		if err := tx.Change(ctx, ErrChanged, `INSERT INTO packs (n, id, size) VALUES (?, ?, ?)
			ON CONFLICT (id) DO NOTHING`, n, r.To.ID[:], r.To.Size); err != nil {
			return err
		}
		for place, u := range r.Units {
			if err := tx.Exec(ctx, `UPDATE units SET pack = ?, place = ?, plain = ?, stored = ? WHERE n = ?`,
				n, place, r.To.Units[place].Plain, r.To.Units[place].Stored, u.N); err != nil {
				return err
			}
			if r.Whole[place] {
				continue
			}
			args := []any{u.N}
			for _, c := range u.Needed {
				args = append(args, c.N)
			}
			if err := tx.Exec(ctx, `DELETE FROM chunks WHERE unit = ? AND n NOT IN `+database.Places(1, len(u.Needed)),
				args...); err != nil {
				return err
			}
		}
		for _, p := range r.From {
			if err := forgetPack(ctx, tx, p.N); err != nil {
				return fmt.Errorf("pack %s: %w", p.ID.Short(), err)
			}
			if err := tx.Exec(ctx, `INSERT INTO rewritten_packs (id, size, retired) VALUES (?, ?, 0)
				ON CONFLICT (id) DO UPDATE SET retired = 0`, p.ID[:], p.Size); err != nil {
				return err
			}
		}
		return tx.Exec(ctx, `UPDATE layouts SET moved = ? WHERE moved = 0`, rewrittenPack)
	})
}

// check returns ErrChanged if a chunk is needed that is not in the new pack.
func (r *Rewriting) check(ctx context.Context, tx database.Session, m *Marks) error {
	whole, copied := map[int64]bool{}, map[int64]bool{} // units, chunks
	for i, u := range r.Units {
		whole[u.N] = r.Whole[i]
		for _, c := range u.Needed {
			copied[c.N] = true
		}
	}
	for _, p := range r.From {
		now, err := packUse(ctx, tx, m, p.N)
		if errors.Is(err, ErrNotFound) {
			return ErrChanged
		}
		if err != nil {
			return err
		}
		for _, u := range now.Units {
			for _, c := range u.Needed {
				if !whole[u.N] && !copied[c.N] {
					return ErrChanged
				}
			}
		}
	}
	return nil
}

// RewrittenPacks returns the packs that were replaced and whose objects are kept, with their sizes
// in bytes.
func (c *Garbage) RewrittenPacks(ctx context.Context) (map[chunk.ID]int64, error) {
	return database.Map(ctx, c.db.Read, database.KeyValue[chunk.ID, int64], `SELECT id, size FROM rewritten_packs`)
}

// MovedLayout is a tree whose locations have to be checked: they may name units that no longer have
// their chunks.
type MovedLayout struct {
	Tree      chunk.ID
	Locations chunk.ID
	Moved     int64 // rewrittenPack or AnyPack
}

// Values of MovedLayout.Moved. The locations may name units that no longer have their chunks:
const (
	rewrittenPack = 1 // of packs among RewrittenPacks
	AnyPack       = 2 // of any pack
)

// MovedLayouts returns the trees whose locations have to be checked.
func (c *Garbage) MovedLayouts(ctx context.Context) ([]MovedLayout, error) {
	return database.List(ctx, c.db.Read, func(l *MovedLayout) []any { return []any{&l.Tree, &l.Locations, &l.Moved} },
		`SELECT tree, locations, moved FROM layouts WHERE moved > 0 ORDER BY tree`)
}

// SettleLocations records that a tree's locations name the right units. locations are those of
// before, or new ones, whose object is stored already and has wire bytes. moves is the count of
// Collections.Moves from before the chunks' units were looked up. SettleLocations changes nothing
// if the tree's locations are not those of before any more, or if there is a new reason to check
// them: another MovedLayout.Moved, or another count of moves.
func (c *Garbage) SettleLocations(
	ctx context.Context, claim Claim, l Lease, before MovedLayout, moves int64, locations chunk.ID, wire int64,
) error {
	return c.db.Update(ctx, "renew locations of tree "+before.Tree.Short(), func(tx database.Session) error {
		now, err := lockCollections(ctx, tx)
		if err != nil {
			return err
		}
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		if now.Moves != moves {
			return nil
		}
		return tx.Exec(ctx, `UPDATE layouts SET moved = 0, locations = ?,
			wire = CASE WHEN locations = ? THEN wire ELSE CAST(? AS BIGINT) END
			WHERE tree = ? AND locations = ? AND moved = ?`,
			locations[:], locations[:], wire, before.Tree[:], before.Locations[:], before.Moved)
	})
}

// Stuck has the trees whose locations cannot be renewed for now, and all packs that these locations
// name. These packs stay.
type Stuck struct {
	Layouts []MovedLayout
	Packs   map[chunk.ID]bool
}

// areAll reports whether all locations that have to be checked, and whose Moved is at least
// leastMoved, are stuck.
func (s *Stuck) areAll(ctx context.Context, tx database.Session, leastMoved int) (bool, error) {
	known := map[[2]chunk.ID]bool{}
	for _, l := range s.Layouts {
		known[[2]chunk.ID{l.Tree, l.Locations}] = true
	}
	for l, err := range database.Rows(ctx, tx, func(l *MovedLayout) []any { return []any{&l.Tree, &l.Locations} },
		`SELECT tree, locations FROM layouts WHERE moved > 0 AND moved >= ?`, leastMoved) {
		if err != nil || !known[[2]chunk.ID{l.Tree, l.Locations}] {
			return false, err
		}
	}
	return true, nil
}

// RetireRewritten records that no locations name the rewritten packs any more, except those that
// stuck locations name. It changes nothing if other locations have to be checked first.
func (c *Garbage) RetireRewritten(ctx context.Context, l Lease, stuck *Stuck) error {
	return c.db.Update(ctx, "retire rewritten packs", func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		if all, err := stuck.areAll(ctx, tx, rewrittenPack); err != nil || !all {
			return err
		}
		packs, err := database.List(ctx, tx, database.Value[chunk.ID],
			`SELECT id FROM rewritten_packs WHERE retired = 0`)
		if err != nil {
			return err
		}
		for _, id := range packs {
			if stuck.Packs[id] {
				continue
			}
			if err := tx.Exec(ctx, `UPDATE rewritten_packs SET retired = `+tx.Clock+`
				WHERE id = ?`, id[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// oldRewritten returns the condition that no locations have named a rewritten pack for longer than
// a duration. The duration, in milliseconds, is the argument of the condition.
func oldRewritten(s database.Session) string {
	return `retired > 0 AND retired <= ` + s.Clock + ` - CAST(? AS BIGINT)`
}

// OldRewritten returns at most limit rewritten packs that no locations have named for longer than
// keep.
func (c *Garbage) OldRewritten(ctx context.Context, keep time.Duration, limit int) ([]StartupPack, error) {
	return database.List(ctx, c.db.Read, func(p *StartupPack) []any { return []any{&p.ID, &p.Size} },
		`SELECT id, size FROM rewritten_packs WHERE `+oldRewritten(c.db.Read)+` ORDER BY retired LIMIT ?`,
		keep.Milliseconds(), limit)
}

// DropRewritten removes rewritten packs, and returns their bytes. It leaves out packs that
// locations may have named within the time keep.
func (c *Garbage) DropRewritten(
	ctx context.Context, claim Claim, l Lease, keep time.Duration, packs []StartupPack,
) (bytes int64, err error) {
	err = c.db.Update(ctx, "drop rewritten packs", func(tx database.Session) error {
		if err := hold(ctx, tx, l); err != nil {
			return err
		}
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		bytes = 0
		for _, p := range packs {
			n, err := tx.ExecCount(ctx, `DELETE FROM rewritten_packs WHERE id = ? AND `+oldRewritten(tx),
				p.ID[:], keep.Milliseconds())
			if err != nil {
				return err
			}
			if n > 0 {
				bytes += p.Size
			}
		}
		return nil
	})
	return bytes, err
}
