package catalog

import (
	"context"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Layout says where nodes find the chunks of a tree. Its objects are stored already.
type Layout struct {
	Tree          chunk.ID
	Locations     chunk.ID // digest that names the object
	LocationsWire int64    // the object's length in bytes
	IndexWire     int64    // length of the tree's index, compressed
	Startup       []byte   // identifies the contents of the startup packs; empty: there are none
	Packs         []StartupPack
	// Moved says that the locations may name other units than the catalog, which has moved their
	// chunks. The old units stay until a collection has renewed the locations. SetLayout ignores
	// it.
	Moved bool
	Claim Claim // of its objects
	Lease Lease // of the job that made it; zero: none
	// Before are the locations that the layout replaces; zero: those that the tree has now.
	Before chunk.ID
	// Moves is the count of Collections.Moves from before the chunks' units were looked up. If the
	// count is another one now, the next collection checks the locations.
	Moves int64
}

// Starts has what the hub knows about how images start: layouts, traces, recordings, and when trees
// were used. It is safe for concurrent use.
type Starts struct{ db *database.DB }

// StartupPack is a pack whose chunks are also in other packs.
type StartupPack struct {
	ID   chunk.ID
	Size int64
}

// Locations returns the digest that names a tree's locations, or ErrNotFound.
func (c *Starts) Locations(ctx context.Context, tree chunk.ID) (chunk.ID, error) {
	id, err := database.Get(ctx, c.db.Read, database.Value[chunk.ID],
		`SELECT locations FROM layouts WHERE tree = ?`, tree[:])
	if err != nil {
		return id, fmt.Errorf("locations of tree %s: %w", tree.Short(), err)
	}
	return id, nil
}

// HasLocations reports whether a tree has the locations with that digest.
func (c *Starts) HasLocations(ctx context.Context, digest chunk.ID) (bool, error) {
	return database.Get(ctx, c.db.Read, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM layouts WHERE locations = ?)`, digest[:])
}

// Layout returns a tree's layout, or ErrNotFound.
func (c *Starts) Layout(ctx context.Context, tree chunk.ID) (Layout, error) {
	l, err := database.Get(ctx, c.db.Read, func(l *Layout) []any {
		return []any{&l.Tree, &l.Locations, &l.LocationsWire, &l.Startup, &l.Moved, &l.IndexWire}
	}, `SELECT l.tree, l.locations, l.wire, l.startup, l.moved > 0, t.index_wire
		FROM layouts l JOIN trees t ON t.tree = l.tree WHERE l.tree = ?`, tree[:])
	if err != nil {
		return l, fmt.Errorf("layout of tree %s: %w", tree.Short(), err)
	}
	l.Packs, err = database.List(ctx, c.db.Read, func(p *StartupPack) []any { return []any{&p.ID, &p.Size} },
		`SELECT p.id, p.size FROM startups s JOIN startup_packs p ON p.id = s.pack WHERE s.tree = ?
			ORDER BY s.position`, tree[:])
	return l, err
}

// SetLayout replaces a tree's layout. Startup packs that no tree has any more retire. The error is
// ErrLost if the layout's job or the claim of its objects was lost, and ErrChanged if the tree's
// locations are not Before.
func (c *Starts) SetLayout(ctx context.Context, l *Layout) error {
	return c.db.Update(ctx, "set layout of tree "+l.Tree.Short(), func(tx database.Session) error {
		now, err := lockCollections(ctx, tx)
		if err != nil {
			return err
		}
		return setLayout(ctx, tx, l, now)
	})
}

// setLayout is SetLayout in a transaction. now has the counts, which lockCollections has locked.
func setLayout(ctx context.Context, tx database.Session, l *Layout, now Collections) error {
	if err := holdClaim(ctx, tx, l.Claim); err != nil {
		return err
	}
	if l.Lease != (Lease{}) {
		if err := hold(ctx, tx, l.Lease); err != nil {
			return err
		}
	}
	if l.Before != (chunk.ID{}) {
		if err := tx.Change(ctx, ErrChanged, `UPDATE layouts SET locations = locations
			WHERE tree = ? AND locations = ?`, l.Tree[:], l.Before[:]); err != nil {
			return err
		}
	}
	if err := leaveStartups(ctx, tx, l.Tree); err != nil {
		return err
	}
	for i, p := range l.Packs {
		if err := tx.Exec(ctx, `INSERT INTO startup_packs (id, size, retired) VALUES (?, ?, 0)
			ON CONFLICT (id) DO UPDATE SET retired = 0`, p.ID[:], p.Size); err != nil {
			return err
		}
		if err := tx.Exec(ctx, `INSERT INTO startups (tree, position, pack) VALUES (?, ?, ?)`,
			l.Tree[:], i, p.ID[:]); err != nil {
			return err
		}
	}
	if err := tx.Exec(ctx, `UPDATE trees SET index_wire = ? WHERE tree = ?`, l.IndexWire, l.Tree[:]); err != nil {
		return err
	}
	if err := tx.Exec(ctx, `UPDATE layouts SET locations = ?, wire = ?, startup = ?,
			moved = CASE WHEN moved = 0 AND EXISTS (SELECT 1 FROM rewritten_packs) THEN ? ELSE moved END
		WHERE tree = ?`,
		l.Locations[:], l.LocationsWire, append([]byte{}, l.Startup...), rewrittenPack, l.Tree[:]); err != nil {
		return err
	}
	if now.Moves == l.Moves {
		return nil
	}
	return tx.Exec(ctx, `UPDATE layouts SET moved = ? WHERE tree = ?`, AnyPack, l.Tree[:])
}

// leaveStartups takes all startup packs from a tree. Those that no other tree has retire.
func leaveStartups(ctx context.Context, tx database.Session, tree chunk.ID) error {
	if err := tx.Exec(ctx, `UPDATE startup_packs AS p SET retired = `+tx.Clock+`
		WHERE retired = 0 AND id IN (SELECT pack FROM startups WHERE tree = ?)
		AND NOT EXISTS (SELECT 1 FROM startups s WHERE s.pack = p.id AND s.tree <> ?)`,
		tree[:], tree[:]); err != nil {
		return err
	}
	return tx.Exec(ctx, `DELETE FROM startups WHERE tree = ?`, tree[:])
}

// Retired returns at most limit retired startup packs to delete, the longest retired first. A pack
// is to be deleted if it retired before the time old. It is also to be deleted if it retired before
// the time recent, and if the pack and all packs that retired after it have more than the given
// bytes.
func (c *Starts) Retired(ctx context.Context, old, recent time.Time, bytes int64, limit int) ([]chunk.ID, error) {
	return database.List(ctx, c.db.Read, database.Value[chunk.ID], `SELECT id FROM (
			SELECT id, retired, SUM(size) OVER (ORDER BY retired DESC, id) AS younger FROM startup_packs
			WHERE retired > 0) AS r
		WHERE retired < ? OR retired < ? AND younger > ? ORDER BY retired LIMIT ?`,
		old.UnixMilli(), recent.UnixMilli(), bytes, limit)
}

// DropRetired removes startup packs. It leaves out packs that are not retired any more. The caller
// has claimed the objects of all of the packs.
func (c *Starts) DropRetired(ctx context.Context, claim Claim, ids []chunk.ID) error {
	return c.db.Update(ctx, "drop retired packs", func(tx database.Session) error {
		if err := holdClaim(ctx, tx, claim); err != nil {
			return err
		}
		for _, id := range ids {
			if err := tx.Exec(ctx, `DELETE FROM startup_packs WHERE id = ? AND retired > 0`, id[:]); err != nil {
				return fmt.Errorf("pack %s: %w", id.Short(), err)
			}
		}
		return nil
	})
}

// TreeUse is what a tree's layout depends on, besides recordings.
type TreeUse struct {
	Served   bool      // a ready image has the tree, or somebody holds it
	Unserved time.Time // since when it was not served; zero: it is
	Lost     time.Time // since when it has no startup packs for lack of room; zero: it may have some
}

// TreeUse returns how a tree is used, or ErrNotFound.
func (c *Starts) TreeUse(ctx context.Context, tree chunk.ID) (TreeUse, error) {
	u, err := database.Get(ctx, c.db.Read, func(u *TreeUse) []any {
		return []any{database.Stamp(&u.Unserved), database.Stamp(&u.Lost), &u.Served}
	}, `SELECT l.unserved, l.lost, `+servedTree+` FROM layouts l WHERE l.tree = ?`, tree[:])
	if err != nil {
		return u, fmt.Errorf("use of tree %s: %w", tree.Short(), err)
	}
	return u, nil
}

// LayoutJob is the kind of the jobs that make the layout of a tree. Their key is the tree.
const LayoutJob = "layout"

// lockLayout locks the open job that makes a tree's layout, before the rows of the layout: see
// lockJob.
func lockLayout(ctx context.Context, tx database.Session, tree chunk.ID) error {
	return lockJob(ctx, tx, LayoutJob, tree.String())
}

// requestLayout queues the job that makes a tree's layout.
func requestLayout(ctx context.Context, tx database.Session, tree chunk.ID, delay time.Duration) error {
	_, err := addJob(ctx, tx, Job{Kind: LayoutJob, Key: tree.String()}, delay)
	return err
}

// RestLayout postpones layouts that new traces cause: the next one is made after d at the earliest.
func (c *Starts) RestLayout(ctx context.Context, tree chunk.ID, d time.Duration) error {
	return c.db.Exec(ctx, "rest after the layout of tree "+tree.Short(),
		`UPDATE layouts SET rest = `+c.db.Write.Clock+` + ? WHERE tree = ?`, d.Milliseconds(), tree[:])
}

// servedTree is the condition that the tree of layout l belongs to a chain of a ready image, or
// that somebody holds the tree.
var servedTree = `(EXISTS (SELECT 1 FROM statements s JOIN image_blobs b ON b.chain = s.chain
	JOIN images i ON i.n = b.image
	WHERE s.tree = l.tree AND i.state = '` + wire.StateReady + `') OR ` + isHeld("l.tree") + `)`

// lockLayouts locks the rows of layouts l that meet a condition until the transaction ends. A
// transaction that changes several of them, or other rows of their trees, locks them first: always
// in the same order, so that no two transactions wait for each other.
func lockLayouts(ctx context.Context, tx database.Session, condition string, args ...any) error {
	_, err := database.List(ctx, tx, database.Value[chunk.ID],
		`SELECT tree FROM layouts AS l WHERE `+condition+` ORDER BY tree`+tx.Lock, args...)
	return err
}

// TreeImages returns the ready images with that tree, the newest first.
func (c *Catalog) TreeImages(ctx context.Context, tree chunk.ID) ([]Image, error) {
	return c.images(ctx, `WHERE i.state = ? AND s.tree = ? ORDER BY i.n DESC`, wire.StateReady, tree[:])
}

// Unserved records, of each tree, since when it has had neither a ready image nor a holder. A tree
// that has had none since before the given time loses its traces and recordings, and a job is
// queued that makes its layout without startup packs.
func (c *Starts) Unserved(ctx context.Context, before time.Time) error {
	long := fmt.Sprintf(`unserved > 0 AND unserved < %d`, before.UnixMilli())
	inLong := ` WHERE tree IN (SELECT tree FROM layouts WHERE ` + long + `)`
	if err := c.db.Update(ctx, "find trees without an image", func(tx database.Session) error {
		changed := `unserved > 0 AND ` + servedTree + ` OR unserved = 0 AND NOT ` + servedTree
		if err := lockLayouts(ctx, tx, changed); err != nil {
			return err
		}
		for _, statement := range []string{
			`UPDATE layouts AS l SET unserved = 0 WHERE unserved > 0 AND ` + servedTree,
			`UPDATE layouts AS l SET unserved = ` + tx.Clock + ` WHERE unserved = 0 AND NOT ` + servedTree,
			`DELETE FROM formers` + inLong,
			`DELETE FROM traces` + inLong,
			`DELETE FROM recordings` + inLong,
		} {
			if err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	trees, err := database.List(ctx, c.db.Read, database.Value[chunk.ID],
		`SELECT tree FROM layouts WHERE `+long+` AND length(startup) > 0`)
	if err != nil || len(trees) == 0 {
		return err
	}
	return c.db.Update(ctx, "request layouts without startup packs", func(tx database.Session) error {
		for _, tree := range trees {
			if err := requestLayout(ctx, tx, tree, 0); err != nil {
				return err
			}
		}
		return nil
	})
}
