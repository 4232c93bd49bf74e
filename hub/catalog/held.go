package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
	"lighter/wire"
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

// Holders are the nodes and mirrors that report what they have. It is safe for concurrent use.
type Holders struct{ db *database.DB }

// HeldBounds bound what all holders, and those of one sender, may have. If SenderHolders or
// SenderTrees is 0, the sender is not bounded.
type HeldBounds struct{ Holders, SenderHolders, Trees, SenderTrees int64 }

// ErrTooMany means that a bound of holders or of their reports is exceeded.
var ErrTooMany = errors.New("the hub has too many holders or reports of them")

// Others is the ID of the holder that stands for all holders beyond a bound. It has all trees that
// they have reported, until none of them has reported for the age at which holders expire. So it
// has at most as many trees as the hub, however many holders there are. It is not a valid ID of
// another holder, and users see its first half: others.
const Others = "others/others"

// HeldReport says what SetHeld has done with a report.
type HeldReport struct {
	Unknown []chunk.ID // trees that are not known, and were ignored
	// Exceeded wraps ErrTooMany if a bound is exceeded; then Others holds the trees that the holder
	// did not have before.
	Exceeded error
}

// SetHeld replaces the trees of a holder and extends its lease. Trees that are not known are
// ignored. If the holder is new or has more trees than before, and a bound is exceeded, the holder
// keeps the trees that it had and has still, and Others gets the new ones. So no holder can keep
// the trees of another one from being held.
func (c *Holders) SetHeld(
	ctx context.Context, h Holder, trees []chunk.ID, bounds HeldBounds,
) (done HeldReport, err error) {
	trees = slices.Clone(trees)
	slices.SortFunc(trees, compareIDs)
	trees = slices.Compact(trees)
	err = c.db.Update(ctx, "record what "+h.Kind+" "+h.Name+" holds", func(tx database.Session) error {
		// No tree is removed between the look at it and the end of the transaction.
		if _, err := database.Get(ctx, tx, database.Value[int64], countCollections+tx.Share); err != nil {
			return err
		}
		known, err := knownTrees(ctx, tx, trees)
		if err != nil {
			return err
		}
		isKnown := func(tree chunk.ID) bool { return known[tree] }
		done = HeldReport{Unknown: slices.DeleteFunc(slices.Clone(trees), isKnown)}
		isNew, err := addHolder(ctx, tx, h)
		if err != nil {
			return err
		}
		before, err := database.List(ctx, tx, database.Value[chunk.ID], `SELECT tree FROM held WHERE holder = ?`, h.ID)
		if err != nil {
			return err
		}
		gone := map[chunk.ID]bool{}
		for _, tree := range before {
			gone[tree] = true
		}
		var added []chunk.ID
		for _, tree := range trees {
			if known[tree] && !gone[tree] {
				added = append(added, tree)
			}
			delete(gone, tree)
		}
		if more := len(added) - len(gone); isNew || more > 0 {
			done.Exceeded, err = checkHeld(ctx, tx, h.Sender, int64(more), bounds)
			if err != nil {
				return err
			}
		}
		if err := releaseTrees(ctx, tx, h.ID, gone); err != nil {
			return err
		}
		if done.Exceeded == nil {
			return holdTrees(ctx, tx, h.ID, added)
		}
		if err := holdTrees(ctx, tx, h.ID, nil); err != nil {
			return err
		}
		if isNew && len(before) == 0 {
			if err := tx.Exec(ctx, `DELETE FROM holders WHERE holder = ?`, h.ID); err != nil {
				return err
			}
		}
		if _, err := addHolder(ctx, tx, Holder{ID: Others, Kind: h.Kind, Name: "beyond the bounds"}); err != nil {
			return err
		}
		return holdTrees(ctx, tx, Others, added)
	})
	return done, err
}

// addHolder adds a holder, or extends its lease. It locks the holder until the transaction ends.
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

// holdTrees adds trees, which are known and sorted, to a holder, and stores the new number of the
// holder's trees.
func holdTrees(ctx context.Context, tx database.Session, holder string, trees []chunk.ID) error {
	add := database.Inserter{TX: tx, Into: `held (holder, tree)`, Columns: 2, Key: `holder, tree`}
	for _, tree := range trees {
		if err := add.Row(ctx, holder, tree[:]); err != nil {
			return err
		}
	}
	if err := add.Flush(ctx); err != nil {
		return err
	}
	return tx.Exec(ctx, `UPDATE holders SET trees = (SELECT COUNT(*) FROM held WHERE holder = ?)
		WHERE holder = ?`, holder, holder)
}

// releaseTrees takes trees from a holder.
func releaseTrees(ctx context.Context, tx database.Session, holder string, trees map[chunk.ID]bool) error {
	for _, tree := range slices.SortedFunc(maps.Keys(trees), compareIDs) { // in the order in which others lock them
		if err := noteRelease(ctx, tx, `holder = ? AND tree = ?`, holder, tree[:]); err != nil {
			return err
		}
		if err := tx.Exec(ctx, `DELETE FROM held WHERE holder = ? AND tree = ?`, holder, tree[:]); err != nil {
			return err
		}
	}
	return nil
}

// noteRelease records that rows of held that meet a condition are about to be removed. While a tree
// is held, the hub announces it, so another node may have got it just now: it stays as long as
// after the removal of its last image.
func noteRelease(ctx context.Context, tx database.Session, condition string, args ...any) error {
	return tx.Exec(ctx, `UPDATE trees SET dead = `+tx.Clock+` WHERE dead > 0 AND tree IN (SELECT tree FROM held
		WHERE `+condition+`)`, args...)
}

// knownTrees returns which of the trees the catalog has.
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

// checkHeld returns which bound a holder of a sender exceeds with more trees than it has, or nil.
// The holder's row exists.
func checkHeld(
	ctx context.Context, tx database.Session, sender string, more int64, bounds HeldBounds,
) (exceeded error, err error) {
	type count struct{ holders, ofSender, trees, senderTrees int64 }
	n, err := database.Get(ctx, tx,
		func(n *count) []any { return []any{&n.holders, &n.ofSender, &n.trees, &n.senderTrees} },
		`SELECT COUNT(*), COALESCE(SUM(CASE WHEN sender = ? THEN 1 ELSE 0 END), 0),
			CAST(COALESCE(SUM(trees), 0) AS BIGINT),
			CAST(COALESCE(SUM(CASE WHEN sender = ? THEN trees ELSE 0 END), 0) AS BIGINT)
		FROM holders WHERE holder <> ?`, sender, sender, Others)
	n.trees += more
	n.senderTrees += more
	switch {
	case err != nil:
		return nil, err
	case n.holders > bounds.Holders:
		return fmt.Errorf("%w: this would be holder %d, of at most %d", ErrTooMany, n.holders, bounds.Holders), nil
	case n.ofSender > bounds.SenderHolders && bounds.SenderHolders > 0:
		return fmt.Errorf("%w: this would be holder %d of %s, of at most %d", ErrTooMany, n.ofSender, sender,
			bounds.SenderHolders), nil
	case n.senderTrees > bounds.SenderTrees && bounds.SenderTrees > 0:
		return fmt.Errorf("%w: all holders of %s would hold %d trees, of at most %d", ErrTooMany, sender, n.senderTrees,
			bounds.SenderTrees), nil
	case n.trees > bounds.Trees:
		return fmt.Errorf("%w: all holders would hold %d trees, of at most %d", ErrTooMany, n.trees, bounds.Trees), nil
	}
	return nil, nil
}

// All returns all holders, sorted by the time of their last report.
func (c *Holders) All(ctx context.Context) ([]Holder, error) {
	return c.holders(ctx, `ORDER BY seen, holder`)
}

// Of returns the holders of a tree, sorted like those of All.
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

// ForgetHolder removes a holder with all that it holds. The error is ErrNotFound if there is none.
func (c *Holders) ForgetHolder(ctx context.Context, id string) error {
	return c.db.Update(ctx, "remove a holder", func(tx database.Session) error {
		if err := noteRelease(ctx, tx, `holder = ?`, id); err != nil {
			return err
		}
		return tx.Change(ctx, ErrNotFound, `DELETE FROM holders WHERE holder = ?`, id)
	})
}

// hasExpired is the condition that holder o has not reported for longer than an age, although
// holders have been able to report for at least a lease: see NoteServing. The age, in milliseconds,
// is the argument of the condition.
func hasExpired(s database.Session) string {
	return fmt.Sprintf(`o.seen < %s - CAST(? AS BIGINT) AND %s - %d >=
		COALESCE((SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'serving_since'), 0)`,
		s.Clock, s.Clock, wire.HeldLease.Milliseconds())
}

// NoteServing records that holders can report now. The hub calls it more often than once in a
// lease. If the last call was longer ago, holders could not report meanwhile: then none expires for
// another lease.
func (c *Holders) NoteServing(ctx context.Context) error {
	return c.db.Update(ctx, "note that holders can report",
		func(tx database.Session) error { return noteServing(ctx, tx) })
}

func noteServing(ctx context.Context, tx database.Session) error {
	now := `CAST(` + tx.Clock + ` AS TEXT)`
	if err := tx.Exec(ctx, `UPDATE meta SET value = `+now+` WHERE name = 'serving_since' AND
		(SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'serving') < `+tx.Clock+` - CAST(? AS BIGINT)`,
		wire.HeldLease.Milliseconds()); err != nil {
		return err
	}
	return tx.Exec(ctx, `UPDATE meta SET value = `+now+` WHERE name = 'serving'`)
}

// ExpireHolders removes at most limit holders that have not reported for longer than age, with all
// that they hold. It returns them. It removes none within a lease after a time in which holders
// could not report.
func (c *Holders) ExpireHolders(ctx context.Context, age time.Duration, limit int) (expired []Holder, err error) {
	err = c.db.Update(ctx, "remove holders that report no more", func(tx database.Session) error {
		if err := noteServing(ctx, tx); err != nil {
			return err
		}
		expired, err = database.List(ctx, tx, func(h *Holder) []any {
			return []any{&h.ID, &h.Kind, &h.Name, &h.Sender, &h.Trees, database.Stamp(&h.Seen)}
		}, `SELECT holder, kind, name, sender, trees, seen FROM holders o WHERE `+hasExpired(tx)+`
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

// isHeld is the condition that somebody holds the tree in a column.
func isHeld(column string) string {
	return `EXISTS (SELECT 1 FROM held h WHERE h.tree = ` + column + `)`
}
