package catalog

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Outcome is how an attempt at a job has ended.
type Outcome struct {
	State string // wire.JobQueued: it is to run again
	Error string
	// Result is the job's result, as JSON; nil: there is none.
	Result []byte
	Delay  time.Duration // before it runs again
	// Uncounted says that the attempt does not count: it was interrupted by the end of the hub.
	Uncounted bool
}

// End ends a worker's attempt, or returns ErrLost. A job that was requested again meanwhile is
// queued. One that was to be cancelled or paused is cancelled or paused, unless it is done. If the
// job has failed or was cancelled, its pending images fail with the outcome's error. End returns
// the job's state.
func (q *Jobs) End(ctx context.Context, l Lease, o Outcome) (state string, err error) {
	uncounted := 0
	if o.Uncounted {
		uncounted = 1
	}
	err = q.db.Update(ctx, fmt.Sprintf("end job %d", l.Job), func(tx database.Session) error {
		j, err := database.Get(ctx, tx, (*Job).fields, `
			UPDATE jobs SET state = CASE WHEN request IN ('again', 'restart') THEN 'queued'
					WHEN request = 'pause again' THEN 'paused'
					WHEN request = 'cancel' AND ? <> 'done' THEN 'cancelled'
					WHEN request = 'pause' AND ? = 'queued' THEN 'paused' ELSE ? END,
				attempts = CASE WHEN request IN ('again', 'restart') OR attempts < ? THEN 0 ELSE attempts - ? END,
				run_at = CASE WHEN request IN ('again', 'restart') THEN run_at ELSE `+tx.Clock+` + ? END,
				error = ?, result = ?, request = '', owner = '', lease = 0, updated = `+tx.Clock+`
			WHERE n = ? AND fence = ? AND state = 'running' RETURNING `+jobColumns,
			o.State, o.State, o.State, uncounted, uncounted, o.Delay.Milliseconds(), o.Error,
			append([]byte{}, o.Result...), l.Job, l.Fence)
		if err != nil {
			return lost(err)
		}
		state = j.State
		return ended(ctx, tx, j, cmp.Or(o.Error, errCancelled))
	})
	return state, err
}

// ended changes what belongs to a job that no longer runs. If the job is queued again or paused,
// its active images are queued. If it has ended, its secret is removed, and its pending images fail
// with a reason unless it is done.
func ended(ctx context.Context, tx database.Session, j Job, reason string) error {
	if j.State == wire.JobQueued || j.State == wire.JobPaused {
		return tx.Exec(ctx, `UPDATE images SET state = ? WHERE name = ? AND root = ? AND state = ?`,
			wire.StateQueued, j.Key, j.Root, wire.StateActive)
	}
	if j.State != wire.JobDone {
		if err := failImages(ctx, tx, j, reason); err != nil {
			return err
		}
	}
	return forgetSecret(ctx, tx, j.N)
}

// errCancelled is the reason why the images of a cancelled job fail.
const errCancelled = "its job was cancelled"

// failImages makes the pending images of a job fail.
func failImages(ctx context.Context, tx database.Session, j Job, reason string) error {
	if j.Root == "" {
		return nil
	}
	return tx.Exec(ctx, `UPDATE images SET state = ?, error = ?, updated = `+tx.Clock+` WHERE name = ? AND root = ?
		AND state IN (?, ?)`, wire.StateFailed, "image "+j.Key+": "+reason, j.Key, j.Root,
		wire.StateQueued, wire.StateActive)
}

// forgetSecret removes the secret and the progress of a job that has ended.
func forgetSecret(ctx context.Context, tx database.Session, n int64) error {
	return tx.Exec(ctx, `UPDATE jobs SET `+unseal(tx)+`, secret = ?, progress = ? WHERE n = ? AND NOT `+openJob,
		[]byte{}, []byte{}, n)
}

// unseal returns a part of the statement that removes a job's secret: it records when.
func unseal(tx database.Session) string {
	return `unsealed = CASE WHEN length(secret) > 0 THEN ` + tx.Clock + ` ELSE unsealed END`
}

// expireJobs ends the attempts of workers that have lost their leases. Their jobs are queued again,
// unless they were to be cancelled or paused. expireJobs skips a job that another transaction has
// locked: the process of that transaction may be stopped for long.
func expireJobs(ctx context.Context, tx database.Session) error {
	cancelled, err := database.List(ctx, tx, (*Job).fields,
		`UPDATE jobs SET state = 'cancelled', owner = '', request = '',
		`+unseal(tx)+`, secret = ?, updated = `+tx.Clock+`
		WHERE n IN (SELECT n FROM jobs
			WHERE state = 'running' AND lease < `+tx.Clock+` AND request = 'cancel'`+tx.Skip+`)
		RETURNING `+jobColumns, []byte{})
	if err != nil {
		return err
	}
	for _, j := range cancelled {
		if err := failImages(ctx, tx, j, errCancelled); err != nil {
			return err
		}
	}
	return tx.Exec(ctx, `UPDATE jobs SET updated = `+tx.Clock+`,
			state = CASE WHEN request IN ('pause', 'pause again') THEN 'paused' ELSE 'queued' END,
			attempts = CASE WHEN request IN ('again', 'restart') THEN 0 ELSE attempts END, request = ''
		WHERE n IN (SELECT n FROM jobs WHERE state = 'running' AND lease < `+tx.Clock+tx.Skip+`)`)
}

// Retire cancels the open jobs of kinds that this release does not have any more, and returns their
// number. A job that a worker owns stays: that worker is a process of an earlier release, beside
// this one.
func (q *Jobs) Retire(ctx context.Context, kinds []string) (retired int, err error) {
	if len(kinds) == 0 {
		return 0, nil
	}
	args := []any{errRetired}
	for _, kind := range kinds {
		args = append(args, kind)
	}
	err = q.db.Update(ctx, "cancel jobs of earlier releases", func(tx database.Session) error {
		jobs, err := database.List(ctx, tx, (*Job).fields,
			`UPDATE jobs SET state = 'cancelled', owner = '', request = '',
				error = ?, updated = `+tx.Clock+`
			WHERE n IN (SELECT n FROM jobs WHERE `+openJob+` AND kind IN `+database.Places(1, len(kinds))+`
				AND (state <> 'running' OR lease < `+tx.Clock+`)`+tx.Skip+`)
			RETURNING `+jobColumns, args...)
		if err != nil {
			return err
		}
		retired = len(jobs)
		for _, j := range jobs {
			if err := ended(ctx, tx, j, errRetired); err != nil {
				return err
			}
		}
		return nil
	})
	return retired, err
}

// errRetired is the reason why a job of an earlier release is cancelled.
const errRetired = "this release of the hub has no jobs of that kind"

// Forget removes at most limit jobs that ended longer ago than age, the secrets of jobs that have
// been paused for longer, and the claims of layers whose owners no longer run. It returns the
// number of removed jobs.
func (q *Jobs) Forget(ctx context.Context, age time.Duration, limit int) (removed int64, err error) {
	err = q.db.Update(ctx, "remove ended jobs", func(tx database.Session) error {
		if err := tx.Exec(ctx, `DELETE FROM claims WHERE NOT EXISTS (SELECT 1 FROM jobs j
			WHERE j.n = claims.job AND j.fence = claims.fence AND j.state = 'running')`); err != nil {
			return err
		}
		if err := tx.Exec(ctx, `UPDATE jobs SET `+unseal(tx)+`, secret = ?
			WHERE state = 'paused' AND length(secret) > 0 AND updated < `+tx.Clock+` - ?`,
			[]byte{}, age.Milliseconds()); err != nil {
			return err
		}
		removed, err = tx.ExecCount(ctx, `DELETE FROM jobs WHERE n IN (SELECT n FROM jobs WHERE NOT `+openJob+`
			AND updated < `+tx.Clock+` - ? ORDER BY updated LIMIT ?)`, age.Milliseconds(), limit)
		return err
	})
	return removed, err
}
