package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog/database"
)

// ErrFull means that too many traces wait to be merged, or that too many jobs are open.
var ErrFull = errors.New("too many wait already")

// Trace is a node's trace, or imported recordings. It waits to be merged into a tree's recordings.
type Trace struct {
	N      int64 // newer traces have higher numbers
	Raw    bool  // Body is a node's trace; otherwise recordings
	Sender string
	Body   []byte
}

// Bounds of the number and the bytes of waiting traces, of one tree and of all trees. The first
// trace of a tree may be larger than the bound of a tree.
const (
	maxWaiting, maxWaitingBytes       = 64, 32 << 20
	maxAllWaiting, maxAllWaitingBytes = 4096, 256 << 20
)

// AddTrace stores a node's trace. It queues the job that merges the trace and makes the tree's
// layout, to run after delay, and not before the time of RestLayout. Errors are ErrNotFound if no
// ready image has the tree and nobody holds it, and ErrFull.
func (c *Starts) AddTrace(
	ctx context.Context, tree chunk.ID, sender string, body []byte, delay time.Duration,
) error {
	return c.addTrace(ctx, tree, Trace{Raw: true, Sender: sender, Body: body}, delay)
}

// AddRecordings is AddTrace for imported recordings, without a delay.
func (c *Starts) AddRecordings(ctx context.Context, tree chunk.ID, body []byte) error {
	return c.addTrace(ctx, tree, Trace{Body: body}, 0)
}

func (c *Starts) addTrace(ctx context.Context, tree chunk.ID, t Trace, delay time.Duration) error {
	full := false
	err := c.db.Update(ctx, "add trace of tree "+tree.Short(), func(tx database.Session) (err error) {
		if err := lockLayout(ctx, tx, tree); err != nil {
			return err
		}
		rest, err := database.Get(ctx, tx, database.Value[int64], `SELECT l.rest - `+tx.Clock+` FROM layouts l
			WHERE l.tree = ? AND `+servedTree, tree[:])
		if err != nil {
			return err
		}
		if full, err = tooManyWait(ctx, tx, tree, len(t.Body)); err != nil {
			return err
		}
		if full { // a job is queued if none is open to merge the waiting traces: the last one has failed
			idle, err := database.Get(ctx, tx, database.Value[bool],
				`SELECT EXISTS (SELECT 1 FROM traces WHERE tree = ?) AND NOT EXISTS
				(SELECT 1 FROM jobs WHERE kind = ? AND key = ? AND `+openJob+`)`, tree[:], LayoutJob, tree.String())
			if err != nil || !idle {
				return err
			}
			return requestLayout(ctx, tx, tree, delay)
		}
		next, err := reserve(ctx, tx, "traces", 1)
		if err != nil {
			return err
		}
		if err := tx.Exec(ctx, `INSERT INTO traces (n, tree, raw, sender, body) VALUES (?, ?, ?, ?, ?)`,
			next, tree[:], t.Raw, t.Sender, t.Body); err != nil {
			return err
		}
		if t.Raw {
			delay = max(delay, time.Duration(rest)*time.Millisecond)
		}
		return requestLayout(ctx, tx, tree, delay)
	})
	if err == nil && full { // the transaction has committed the job
		err = fmt.Errorf("add trace of tree %s: %w", tree.Short(), ErrFull)
	}
	return err
}

// tooManyWait reports whether another trace of that size would exceed a bound of waiting traces.
func tooManyWait(ctx context.Context, tx database.Session, tree chunk.ID, size int) (bool, error) {
	type waiting struct{ count, bytes, allCount, allBytes int }
	w, err := database.Get(ctx, tx, func(w *waiting) []any {
		return []any{&w.allCount, &w.allBytes, &w.count, &w.bytes}
	}, `SELECT COUNT(*), COALESCE(SUM(length(body)), 0), COUNT(CASE WHEN tree = ? THEN 1 END),
		COALESCE(SUM(CASE WHEN tree = ? THEN length(body) END), 0) FROM traces`, tree[:], tree[:])
	return w.count >= maxWaiting || w.count > 0 && w.bytes+size > maxWaitingBytes ||
		w.allCount >= maxAllWaiting || w.allBytes+size > maxAllWaitingBytes, err
}

// Traces returns the traces of a tree that are to be merged, the oldest first.
func (c *Starts) Traces(ctx context.Context, tree chunk.ID) ([]Trace, error) {
	return database.List(ctx, c.db.Read, func(t *Trace) []any { return []any{&t.N, &t.Raw, &t.Sender, &t.Body} },
		`SELECT n, raw, sender, body FROM traces WHERE tree = ? ORDER BY n`, tree[:])
}

// Recordings returns the recordings of a tree, or nil if there are none.
func (c *Starts) Recordings(ctx context.Context, tree chunk.ID) ([]byte, error) {
	body, err := database.Get(ctx, c.db.Read, database.Value[[]byte],
		`SELECT body FROM recordings WHERE tree = ?`, tree[:])
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return body, err
}

// ErrChanged means that what the caller has read has changed since, so that its change would be
// wrong: it has to read again.
var ErrChanged = errors.New("the catalog has changed meanwhile")

// KeepRecordings replaces the recordings of a tree, and removes its traces up to number last, which
// are merged into them. before is what Recordings has returned. The error is ErrChanged if the tree
// has other recordings now, or none of these traces.
func (c *Starts) KeepRecordings(ctx context.Context, tree chunk.ID, before, body []byte, last int64) error {
	return c.db.Update(ctx, "replace recordings of tree "+tree.Short(), func(tx database.Session) error {
		if err := replace(ctx, tx, tree, before, body); err != nil {
			return err
		}
		return tx.Change(ctx, ErrChanged, `DELETE FROM traces WHERE tree = ? AND n <= ?`, tree[:], last)
	})
}

// CutRecordings replaces the recordings of a tree by some of them, and queues the job that makes
// its layout. If all is true, it also removes the tree's waiting traces, and returns their number.
// before and the error ErrChanged are as for KeepRecordings.
func (c *Starts) CutRecordings(ctx context.Context, tree chunk.ID, before, body []byte, all bool) (
	waiting int64, err error) {
	err = c.db.Update(ctx, "remove recordings of tree "+tree.Short(), func(tx database.Session) error {
		if err := lockLayout(ctx, tx, tree); err != nil {
			return err
		}
		if err := replace(ctx, tx, tree, before, body); err != nil {
			return err
		}
		if all {
			if waiting, err = tx.ExecCount(ctx, `DELETE FROM traces WHERE tree = ?`, tree[:]); err != nil {
				return err
			}
		}
		return requestLayout(ctx, tx, tree, 0)
	})
	return waiting, err
}

// replace replaces a tree's recordings if they are equal to before; nil: there are none. Otherwise
// the error is ErrChanged.
func replace(ctx context.Context, tx database.Session, tree chunk.ID, before, body []byte) error {
	if before == nil {
		return tx.Change(ctx, ErrChanged, `INSERT INTO recordings (tree, body) VALUES (?, ?)
			ON CONFLICT (tree) DO NOTHING`, tree[:], body)
	}
	return tx.Change(ctx, ErrChanged, `UPDATE recordings SET body = ? WHERE tree = ? AND body = ?`,
		body, tree[:], before)
}

// StartHoldings has the numbers and bytes of what the hub keeps for starts, of all trees.
type StartHoldings struct {
	Packs, PackBytes int64 // startup packs, including retired ones
	Live             int64 // bytes of startup packs that are not retired
	Lost             int64 // trees without startup packs for lack of room
	TraceBytes       int64 // traces and recordings, compressed
	Waiting          int64 // trees whose layout is to be made
}

// StartHoldings returns the current figures.
func (c *Starts) StartHoldings(ctx context.Context) (StartHoldings, error) {
	return database.Get(ctx, c.db.Read, func(h *StartHoldings) []any {
		return []any{&h.Packs, &h.PackBytes, &h.Live, &h.Lost, &h.TraceBytes, &h.Waiting}
	}, `SELECT
		(SELECT COUNT(*) FROM startup_packs), (SELECT COALESCE(SUM(size), 0) FROM startup_packs),
		(SELECT COALESCE(SUM(size), 0) FROM startup_packs WHERE retired = 0),
		(SELECT COUNT(*) FROM layouts WHERE lost > 0 AND unserved = 0),
		(SELECT COALESCE(SUM(length(body)), 0) FROM traces) + (SELECT COALESCE(SUM(length(body)), 0) FROM recordings),
		(SELECT COUNT(*) FROM jobs WHERE kind = ? AND `+openJob+`)`, LayoutJob)
}
