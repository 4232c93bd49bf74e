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

// Holder is a node, a mirror or another client that has copies of trees: it holds these trees. They
// are not removed before ForgetHolder or ExpireHolders has removed the holder.
type Holder struct {
	ID     string // chosen by the holder, random; a client that knows it can replace the holder's trees
	Kind   string // wire.HolderNode, …
	Name   string // of its host, for users
	Sender string // address or network of its last report; empty: the hub's own machine
	Trees  int64  // number of trees that it holds and that the catalog has
	Seen   time.Time
	Age    time.Duration // since Seen, by the database's clock
}

// Holders has the nodes and mirrors that report what they have, and the trees that they hold. It is
// safe for concurrent use.
type Holders struct{ db *database.DB }

// HeldBounds bounds the number of holders and the trees that they hold together: of all holders,
// and of those of one sender. If SenderHolders or SenderTrees is 0, that number is not bounded.
type HeldBounds struct{ Holders, SenderHolders, Trees, SenderTrees int64 }

// ErrTooMany means that a bound of holders would be exceeded.
var ErrTooMany = errors.New("the hub accepts no more reports of held trees")

// SetHeld replaces the trees of a holder, and records that it has reported now. It returns those of
// the trees that the catalog does not have; they are not recorded. The error wraps ErrTooMany, and
// nothing changes, if a bound is exceeded and the holder is new or has more trees than before.
func (c *Holders) SetHeld(
	ctx context.Context, h Holder, trees []chunk.ID, bounds HeldBounds,
) (unknown []chunk.ID, err error) {
	err = c.db.Update(ctx, "record what "+h.Kind+" "+h.Name+" holds", func(tx database.Session) error {
		// No tree is removed between this statement and the end of the transaction.
		if _, err := database.Get(ctx, tx, database.Value[int64], countCollections+tx.Share); err != nil {
			return err
		}
		isNew, err := addHolder(ctx, tx, h)
		if err != nil {
			return err
		}
		added, missing, err := replaceHeld(ctx, tx, h.ID, trees)
		if err != nil {
			return err
		}
		unknown = missing
		if !isNew && added <= 0 {
			return nil
		}
		return checkHeld(ctx, tx, h.Sender, bounds)
	})
	return unknown, err
}

// addHolder adds a holder, or records that it has reported now. It locks the holder until the
// transaction ends.
func addHolder(ctx context.Context, tx database.Session, h Holder) (isNew bool, err error) {
	err = tx.Change(ctx, ErrNotFound, `UPDATE holders SET kind = ?, name = ?, sender = ?, seen = `+tx.Clock+`
		WHERE holder = ?`, h.Kind, h.Name, h.Sender, h.ID)
	if !errors.Is(err, ErrNotFound) {
		return false, err
	}
	return true, tx.Exec(ctx, `INSERT INTO holders (holder, kind, name, sender, trees, seen)
		VALUES (?, ?, ?, ?, 0, `+tx.Clock+`) ON CONFLICT (holder) DO UPDATE SET seen = excluded.seen`,
		h.ID, h.Kind, h.Name, h.Sender)
}

// replaceHeld replaces the trees of a holder. added is the number of its trees less the number
// before. unknown are those of the trees that the catalog does not have.
func replaceHeld(
	ctx context.Context, tx database.Session, holder string, trees []chunk.ID,
) (added int, unknown []chunk.ID, err error) {
	trees = slices.Clone(trees)
	slices.SortFunc(trees, func(a, b chunk.ID) int { return bytes.Compare(a[:], b[:]) })
	trees = slices.Compact(trees)
	before, err := database.List(ctx, tx, database.Value[chunk.ID], `SELECT tree FROM held WHERE holder = ?`, holder)
	if err != nil {
		return 0, nil, err
	}
	gone := map[chunk.ID]bool{}
	for _, tree := range before {
		gone[tree] = true
	}
	add := database.Inserter{TX: tx, Into: `held (holder, tree)`, Columns: 2, Key: `holder, tree`}
	known, err := knownTrees(ctx, tx, trees)
	if err != nil {
		return 0, nil, err
	}
	for _, tree := range trees {
		if !known[tree] {
			unknown = append(unknown, tree)
			continue
		}
		if !gone[tree] {
			if err := add.Row(ctx, holder, tree[:]); err != nil {
				return 0, nil, err
			}
		}
		delete(gone, tree)
	}
	now := len(known)
	if err := add.Flush(ctx); err != nil {
		return 0, nil, err
	}
	for _, tree := range slices.SortedFunc(maps.Keys(gone), compareIDs) { // in the order in which others lock them
		if err := noteRelease(ctx, tx, `holder = ? AND tree = ?`, holder, tree[:]); err != nil {
			return 0, nil, err
		}
		if err := tx.Exec(ctx, `DELETE FROM held WHERE holder = ? AND tree = ?`, holder, tree[:]); err != nil {
			return 0, nil, err
		}
	}
	return now - len(before), unknown, tx.Exec(ctx, `UPDATE holders SET trees = ? WHERE holder = ?`, now, holder)
}

// noteRelease records that the rows of table held that meet a condition are about to be removed.
// While a tree is held, the hub announces it, so another node may have got it just now. So a tree
// without an image stays as long after the loss of a holder as after the loss of its last image.
func noteRelease(ctx context.Context, tx database.Session, condition string, args ...any) error {
	return tx.Exec(ctx, `UPDATE trees SET dead = `+tx.Clock+` WHERE dead > 0 AND tree IN (SELECT tree FROM held
		WHERE `+condition+`)`, args...)
}

// knownTrees returns those of the trees that the catalog has.
func knownTrees(ctx context.Context, tx database.Session, trees []chunk.ID) (map[chunk.ID]bool, error) {
	known := map[chunk.ID]bool{}
	for batch := range slices.Chunk(trees, lookupBatch) {
		var args []any
		for _, tree := range batch {
			args = append(args, tree[:])
		}
		found, err := database.List(ctx, tx, database.Value[chunk.ID],
			`SELECT tree FROM trees WHERE tree IN `+database.Places(1, len(args)), args...)
		if err != nil {
			return nil, err
		}
		for _, tree := range found {
			known[tree] = true
		}
	}
	return known, nil
}

// checkHeld returns an error that wraps ErrTooMany if a bound is exceeded.
func checkHeld(ctx context.Context, tx database.Session, sender string, bounds HeldBounds) error {
	type count struct{ holders, ofSender, trees, senderTrees int64 }
	n, err := database.Get(ctx, tx, func(n *count) []any {
		return []any{&n.holders, &n.ofSender, &n.trees, &n.senderTrees}
	}, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN sender = ? THEN 1 ELSE 0 END), 0),
			CAST(COALESCE(SUM(trees), 0) AS BIGINT),
			CAST(COALESCE(SUM(CASE WHEN sender = ? THEN trees ELSE 0 END), 0) AS BIGINT)
		FROM holders`, sender, sender)
	switch {
	case err != nil:
		return err
	case n.holders > bounds.Holders:
		return fmt.Errorf("%w: this would be holder %d, of at most %d", ErrTooMany, n.holders, bounds.Holders)
	case n.ofSender > bounds.SenderHolders && bounds.SenderHolders > 0:
		return fmt.Errorf("%w: this would be holder %d of %s, of at most %d", ErrTooMany, n.ofSender, sender,
			bounds.SenderHolders)
	case n.senderTrees > bounds.SenderTrees && bounds.SenderTrees > 0:
		return fmt.Errorf("%w: all holders of %s would hold %d trees, of at most %d", ErrTooMany, sender, n.senderTrees,
			bounds.SenderTrees)
	case n.trees > bounds.Trees:
		return fmt.Errorf("%w: all holders would hold %d trees, of at most %d", ErrTooMany, n.trees, bounds.Trees)
	}
	return nil
}

// All returns all holders, sorted by the time of their last report.
func (c *Holders) All(ctx context.Context) ([]Holder, error) {
	return c.holders(ctx, `ORDER BY seen, holder`)
}

// Of returns the holders of a tree, sorted as by All.
func (c *Holders) Of(ctx context.Context, tree chunk.ID) ([]Holder, error) {
	return c.holders(ctx, `WHERE holder IN (SELECT holder FROM held WHERE tree = ?) ORDER BY seen, holder`, tree[:])
}

func (c *Holders) holders(ctx context.Context, clauses string, args ...any) ([]Holder, error) {
	all, err := database.List(ctx, c.db.Read, func(h *Holder) []any {
		return []any{&h.ID, &h.Kind, &h.Name, &h.Sender, &h.Trees, database.Stamp(&h.Seen),
			database.Milliseconds(&h.Age)}
	}, `SELECT holder, kind, name, sender, trees, seen, `+c.db.Read.Clock+` - seen FROM holders `+clauses, args...)
	for i := range all {
		all[i].Seen = all[i].Seen.UTC()
	}
	return all, err
}

// ForgetHolder removes a holder and its list of trees. The error is ErrNotFound if there is none.
func (c *Holders) ForgetHolder(ctx context.Context, id string) error {
	return c.db.Update(ctx, "remove a holder", func(tx database.Session) error {
		if err := noteRelease(ctx, tx, `holder = ?`, id); err != nil {
			return err
		}
		return tx.Change(ctx, ErrNotFound, `DELETE FROM holders WHERE holder = ?`, id)
	})
}

// ExpireHolders removes at most limit holders that have not reported for longer than age, and their
// lists of trees. It returns these holders.
func (c *Holders) ExpireHolders(ctx context.Context, age time.Duration, limit int) (expired []Holder, err error) {
	err = c.db.Update(ctx, "remove holders that report no more", func(tx database.Session) error {
		expired, err = database.List(ctx, tx, func(h *Holder) []any {
			return []any{&h.ID, &h.Kind, &h.Name, &h.Sender, &h.Trees, database.Stamp(&h.Seen)}
		}, `SELECT holder, kind, name, sender, trees, seen FROM holders WHERE seen < `+tx.Clock+` - ?
			ORDER BY seen LIMIT ?`+tx.Lock, age.Milliseconds(), limit)
		if err != nil || len(expired) == 0 {
			return err
		}
		var ids []any
		for _, h := range expired {
			ids = append(ids, h.ID)
		}
		among := `holder IN ` + database.Places(1, len(ids))
		if err := noteRelease(ctx, tx, among, ids...); err != nil {
			return err
		}
		return tx.Exec(ctx, `DELETE FROM holders WHERE `+among, ids...)
	})
	return expired, err
}

// isHeld returns the condition that somebody holds the tree in a column.
func isHeld(column string) string {
	return `EXISTS (SELECT 1 FROM held h WHERE h.tree = ` + column + `)`
}
