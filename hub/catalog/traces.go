package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"lighter/format/chunk"
)

// ErrFull says that more traces of a tree wait than are kept.
var ErrFull = errors.New("enough traces of this image wait already")

// Trace is what a start, or several, have read of a tree.
type Trace struct {
	N         int64 // rising: newer ones have higher numbers
	Raw       bool  // Body is what a node has sent; otherwise recordings
	Inherited bool  // of the image before this one
	Body      []byte
}

// maxWaiting is how many traces of a tree may wait as they were sent.
const maxWaiting = 64

// AddTrace keeps a trace as it was sent and has the tree laid out anew at the
// given time, if not sooner. ErrNotFound: no image that is ready has the tree.
func (c *Catalog) AddTrace(ctx context.Context, tree chunk.ID, body []byte, at time.Time) error {
	return c.change(ctx, tree, at, func(tx *sql.Tx) error {
		var waiting int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM traces WHERE tree = ? AND raw = 1`, tree[:]).Scan(&waiting); err != nil {
			return err
		}
		if waiting >= maxWaiting {
			return ErrFull
		}
		return insertTraces(ctx, tx, tree, []Trace{{Raw: true, Body: body}})
	})
}

// AddRecordings does the same with recordings, of which whoever gives them has
// seen to it that they are not too many.
func (c *Catalog) AddRecordings(ctx context.Context, tree chunk.ID, bodies [][]byte, at time.Time) error {
	return c.change(ctx, tree, at, func(tx *sql.Tx) error {
		var traces []Trace
		for _, body := range bodies {
			traces = append(traces, Trace{Body: body})
		}
		return insertTraces(ctx, tx, tree, traces)
	})
}

// change does something to the traces of a tree that is served.
func (c *Catalog) change(ctx context.Context, tree chunk.ID, at time.Time, do func(tx *sql.Tx) error) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		done, err := tx.ExecContext(ctx, `
			UPDATE layouts AS l SET changes = changes + 1, tries = 0, due = CASE WHEN due = 0 THEN ? ELSE due END WHERE l.tree = ? AND `+servedTree,
			at.UnixMilli(), tree[:])
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return errors.Join(ErrNotFound, err)
		}
		return do(tx)
	})
	if err != nil {
		return fmt.Errorf("keep a trace of tree %s: %w", tree.Short(), err)
	}
	return nil
}

func insertTraces(ctx context.Context, tx *sql.Tx, tree chunk.ID, traces []Trace) error {
	next, err := nextNumber(ctx, tx, "traces")
	if err != nil {
		return err
	}
	for i, t := range traces {
		if _, err := tx.ExecContext(ctx, `INSERT INTO traces (n, tree, raw, inherited, body) VALUES (?, ?, ?, ?, ?)`,
			next+int64(i), tree[:], number(t.Raw), number(t.Inherited), t.Body); err != nil {
			return err
		}
	}
	return nil
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Traces lists the traces of a tree, the oldest first.
func (c *Catalog) Traces(ctx context.Context, tree chunk.ID) (traces []Trace, err error) {
	return traces, each(ctx, c.read, func(rows *sql.Rows) error {
		var t Trace
		var raw, inherited int
		if err := rows.Scan(&t.N, &raw, &inherited, &t.Body); err != nil {
			return err
		}
		t.Raw, t.Inherited = raw != 0, inherited != 0
		traces = append(traces, t)
		return nil
	}, `SELECT n, raw, inherited, body FROM traces WHERE tree = ? ORDER BY n`, tree[:])
}

// KeepTraces makes these the traces of a tree, but for those that came after
// number last: each keeps its number, and those that are not among them go.
func (c *Catalog) KeepTraces(ctx context.Context, tree chunk.ID, last int64, keep []Trace) error {
	err := c.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM traces WHERE tree = ? AND n <= ?`, tree[:], last); err != nil {
			return err
		}
		for _, t := range keep {
			if _, err := tx.ExecContext(ctx, `INSERT INTO traces (n, tree, raw, inherited, body) VALUES (?, ?, ?, ?, ?)`,
				t.N, tree[:], number(t.Raw), number(t.Inherited), t.Body); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep the traces of tree %s: %w", tree.Short(), err)
	}
	return nil
}

// TraceCount counts the traces that are kept, and their bytes.
func (c *Catalog) TraceCount(ctx context.Context) (traces, bytes int64, err error) {
	err = c.read.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(length(body)), 0) FROM traces`).Scan(&traces, &bytes)
	return traces, bytes, err
}
