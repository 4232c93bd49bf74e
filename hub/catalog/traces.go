package catalog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
)

// ErrFull says that more traces of a tree wait than are kept.
var ErrFull = errors.New("enough traces of this image wait already")

// Trace is what somebody has told of starts of a tree.
type Trace struct {
	N      int64 // rising: newer ones have higher numbers
	Raw    bool  // Body is what a node has sent; otherwise recordings
	Sender string
	Body   []byte
}

// How many traces of a tree, and of all, may wait as they were sent, and of how many
// bytes. A tree of which none waits may have one that is longer.
const (
	maxWaiting, maxWaitingBytes       = 64, 32 << 20
	maxAllWaiting, maxAllWaitingBytes = 4096, 256 << 20
)

// AddTrace keeps a trace as it was sent, by whom, and has the tree laid out anew at the
// given time, if not sooner. ErrNotFound: no image that is ready has the tree.
func (c *Catalog) AddTrace(ctx context.Context, tree chunk.ID, sender string, body []byte, at time.Time) error {
	return c.addTrace(ctx, tree, Trace{Raw: true, Sender: sender, Body: body}, at)
}

// AddRecordings does the same with recordings.
func (c *Catalog) AddRecordings(ctx context.Context, tree chunk.ID, body []byte, at time.Time) error {
	return c.addTrace(ctx, tree, Trace{Body: body}, at)
}

func (c *Catalog) addTrace(ctx context.Context, tree chunk.ID, t Trace, at time.Time) error {
	full := false
	err := c.update(ctx, func(tx *sql.Tx) (err error) {
		if full, err = waitEnough(ctx, tx, tree, len(t.Body)); err != nil {
			return err
		}
		set := `changes = changes + 1, tries = 0, due = CASE WHEN due = 0 THEN ? ELSE due END`
		if full { // of traces that wait since the tree was given up, perhaps
			set = `due = CASE WHEN due = 0 AND EXISTS (SELECT 1 FROM traces t WHERE t.tree = l.tree) THEN ? ELSE due END`
		}
		done, err := tx.ExecContext(ctx, `UPDATE layouts AS l SET `+set+` WHERE l.tree = ? AND `+servedTree, at.UnixMilli(), tree[:])
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return errors.Join(ErrNotFound, err)
		}
		if full {
			return nil
		}
		next, err := nextNumber(ctx, tx, "traces")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO traces (n, tree, raw, sender, body) VALUES (?, ?, ?, ?, ?)`,
			next, tree[:], map[bool]int{true: 1}[t.Raw], t.Sender, t.Body)
		return err
	})
	if err == nil && full {
		err = ErrFull
	}
	if err != nil {
		return fmt.Errorf("keep a trace of tree %s: %w", tree.Short(), err)
	}
	return nil
}

// waitEnough tells whether there is no room for one more trace of so many bytes.
func waitEnough(ctx context.Context, tx *sql.Tx, tree chunk.ID, size int) (bool, error) {
	var waiting, all struct{ count, bytes int }
	err := tx.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(length(body)), 0), COUNT(CASE WHEN tree = ? THEN 1 END),
		COALESCE(SUM(CASE WHEN tree = ? THEN length(body) END), 0) FROM traces`, tree[:], tree[:]).
		Scan(&all.count, &all.bytes, &waiting.count, &waiting.bytes)
	return waiting.count >= maxWaiting || waiting.count > 0 && waiting.bytes+size > maxWaitingBytes ||
		all.count >= maxAllWaiting || all.bytes+size > maxAllWaitingBytes, err
}

// Traces lists the traces of a tree that nobody has looked at, the oldest first.
func (c *Catalog) Traces(ctx context.Context, tree chunk.ID) (traces []Trace, err error) {
	return traces, each(ctx, c.read, func(rows *sql.Rows) error {
		var t Trace
		var raw int
		err := rows.Scan(&t.N, &raw, &t.Sender, &t.Body)
		t.Raw = raw != 0
		traces = append(traces, t)
		return err
	}, `SELECT n, raw, sender, body FROM traces WHERE tree = ? ORDER BY n`, tree[:])
}

// Recordings returns what is kept of the starts of a tree, nothing if there is
// nothing.
func (c *Catalog) Recordings(ctx context.Context, tree chunk.ID) (body []byte, err error) {
	err = c.read.QueryRowContext(ctx, `SELECT body FROM recordings WHERE tree = ?`, tree[:]).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the recordings of tree %s: %w", tree.Short(), err)
	}
	return body, nil
}

// ErrChanged says that the recordings of a tree, or its traces, are others than
// those that were looked at.
var ErrChanged = errors.New("what is kept of its starts has changed meanwhile")

// KeepRecordings puts recordings of a tree in the place of those that Recordings
// has returned, and forgets the traces up to number last, which are in them.
// ErrChanged: somebody else was faster.
func (c *Catalog) KeepRecordings(ctx context.Context, tree chunk.ID, before, body []byte, last int64) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		if err := replace(ctx, tx, tree, before, body); err != nil {
			return err
		}
		done, err := tx.ExecContext(ctx, `DELETE FROM traces WHERE tree = ? AND n <= ?`, tree[:], last)
		return changedIfNone(done, err)
	})
	if err != nil {
		return fmt.Errorf("keep the recordings of tree %s: %w", tree.Short(), err)
	}
	return nil
}

// CutRecordings puts recordings of a tree in the place of those that Recordings has
// returned, and has the tree laid out anew; with all, it also forgets the traces that
// nobody has looked at, and says how many these were. ErrChanged: somebody else was
// faster.
func (c *Catalog) CutRecordings(ctx context.Context, tree chunk.ID, before, body []byte, all bool) (waiting int64, err error) {
	err = c.update(ctx, func(tx *sql.Tx) error {
		if err := replace(ctx, tx, tree, before, body); err != nil {
			return err
		}
		if all {
			done, err := tx.ExecContext(ctx, `DELETE FROM traces WHERE tree = ?`, tree[:])
			if err != nil {
				return err
			}
			if waiting, err = done.RowsAffected(); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `UPDATE layouts SET due = ?, changes = changes + 1, tries = 0 WHERE tree = ?`, time.Now().UnixMilli(), tree[:])
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cut the recordings of tree %s: %w", tree.Short(), err)
	}
	return waiting, nil
}

// replace changes a tree's recordings, unless they are not those from before; nil:
// there are none.
func replace(ctx context.Context, tx *sql.Tx, tree chunk.ID, before, body []byte) error {
	if before == nil {
		return changedIfNone(tx.ExecContext(ctx, `INSERT INTO recordings (tree, body) VALUES (?, ?) ON CONFLICT (tree) DO NOTHING`, tree[:], body))
	}
	return changedIfNone(tx.ExecContext(ctx, `UPDATE recordings SET body = ? WHERE tree = ? AND body = ?`, body, tree[:], before))
}

func changedIfNone(done sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, ErrChanged)
	}
	return nil
}

// StartHoldings says how much is kept for starts, of all trees.
type StartHoldings struct {
	Packs, PackBytes int64 // startup packs, with those that have retired
	Live             int64 // bytes of those that have not
	Lost             int64 // trees that have none because others are used more
	TraceBytes       int64 // traces and recordings, compressed
	Waiting          int64 // trees that wait for a layout
}

// StartHoldings counts them.
func (c *Catalog) StartHoldings(ctx context.Context) (h StartHoldings, err error) {
	err = c.read.QueryRowContext(ctx, `SELECT
		(SELECT COUNT(*) FROM startup_packs), (SELECT COALESCE(SUM(size), 0) FROM startup_packs),
		(SELECT COALESCE(SUM(size), 0) FROM startup_packs WHERE retired = 0), (SELECT COUNT(*) FROM layouts WHERE lost > 0 AND unserved = 0),
		(SELECT COALESCE(SUM(length(body)), 0) FROM traces) + (SELECT COALESCE(SUM(length(body)), 0) FROM recordings),
		(SELECT COUNT(*) FROM layouts WHERE due > 0)`).Scan(&h.Packs, &h.PackBytes, &h.Live, &h.Lost, &h.TraceBytes, &h.Waiting)
	if err != nil {
		return h, fmt.Errorf("read the catalog: %w", err)
	}
	return h, nil
}
