package catalog

import (
	"context"
	"errors"
	"fmt"

	"lighter/hub/catalog/database"
	"lighter/wire"
)

// Open returns the open job of a kind and key, or ErrNotFound.
func (q *Jobs) Open(ctx context.Context, kind, key string) (Job, error) {
	return openOf(ctx, q.db.Read, kind, key)
}

func openOf(ctx context.Context, in database.Session, kind, key string) (Job, error) {
	return database.Get(ctx, in, (*Job).fields,
		`SELECT `+jobColumns+` FROM jobs WHERE kind = ? AND key = ? AND `+openJob,
		kind, key)
}

// OpenOf returns all open jobs of a kind.
func (q *Jobs) OpenOf(ctx context.Context, kind string) ([]Job, error) {
	return database.List(ctx, q.db.Read, (*Job).fields,
		`SELECT `+jobColumns+` FROM jobs WHERE kind = ? AND `+openJob, kind)
}

// LastOf returns the last job of a kind for each key, also if it has ended and is not forgotten.
func (q *Jobs) LastOf(ctx context.Context, kind string) (map[string]Job, error) {
	last := map[string]Job{}
	for j, err := range database.Rows(ctx, q.db.Read, (*Job).fields,
		`SELECT `+jobColumns+` FROM jobs WHERE kind = ? ORDER BY n`, kind) {
		if err != nil {
			return nil, fmt.Errorf("list the jobs of kind %s: %w", kind, err)
		}
		last[j.Key] = j
	}
	return last, nil
}

// Get returns a job, or ErrNotFound.
func (q *Jobs) Get(ctx context.Context, n int64) (Job, error) {
	j, err := database.Get(ctx, q.db.Read, (*Job).fields, `SELECT `+jobColumns+` FROM jobs WHERE n = ?`, n)
	if err != nil {
		return j, fmt.Errorf("job %d: %w", n, err)
	}
	return j, nil
}

// List returns at most limit jobs: open ones in the order in which they run or, with ended, the
// ones that ended last.
func (q *Jobs) List(ctx context.Context, ended bool, limit int) ([]Job, error) {
	condition := openJob + ` ORDER BY CASE state WHEN 'running' THEN 0 WHEN 'queued' THEN 1 ELSE 2 END, priority DESC,
		run_at, n`
	if ended {
		condition = `NOT ` + openJob + ` ORDER BY updated DESC, n DESC`
	}
	return database.List(ctx, q.db.Read, (*Job).fields,
		`SELECT `+jobColumns+` FROM jobs WHERE `+condition+` LIMIT ?`, limit)
}

// Count counts the open jobs by kind and state.
func (q *Jobs) Count(ctx context.Context) (map[[2]string]int64, error) {
	return database.Map(ctx, q.db.Read, func(k *[2]string, n *int64) []any { return []any{&k[0], &k[1], n} },
		`SELECT kind, state, COUNT(*) FROM jobs WHERE `+openJob+` GROUP BY kind, state`)
}

// Cancel ends a queued or paused job, or asks the worker of a running one to end it. It returns
// the job's state. The error is ErrNotFound if there is no such open job.
func (q *Jobs) Cancel(ctx context.Context, n int64) (string, error) {
	return q.request(ctx, n, wire.JobCancel, wire.JobCancelled, `state <> 'running'`)
}

// Pause makes a queued job wait for Retry, or asks the worker of a running one to stop, unless it
// is to be cancelled. It returns the job's state. The error is ErrNotFound if there is no such open
// job.
func (q *Jobs) Pause(ctx context.Context, n int64) (string, error) {
	return q.request(ctx, n, wire.JobPause, wire.JobPaused, `state = 'queued'`)
}

// request sets the state of an open job that meets the condition atOnce. The worker of a running
// job gets the request instead.
func (q *Jobs) request(ctx context.Context, n int64, request, state, atOnce string) (now string, err error) {
	err = q.db.Update(ctx, fmt.Sprintf("%s job %d", request, n), func(tx database.Session) error {
		j, err := database.Get(ctx, tx, (*Job).fields, `UPDATE jobs SET
				request = CASE WHEN state <> 'running' THEN '' WHEN request = 'cancel' THEN request
					WHEN request IN ('again', 'restart', 'pause again') AND ? THEN 'pause again' ELSE ? END,
				state = CASE WHEN `+atOnce+` THEN ? ELSE state END, updated = `+tx.Clock+`
			WHERE n = ? AND `+openJob+` RETURNING `+jobColumns,
			request == wire.JobPause, request, state, n)
		if errors.Is(err, ErrNotFound) {
			return fmt.Errorf("%w among the jobs that have not ended", ErrNotFound)
		}
		if now = j.State; err != nil || now == wire.JobRunning {
			return err
		}
		return ended(ctx, tx, j, errCancelled)
	})
	return now, err
}

// Retry makes a job run as soon as possible, if it waits, is paused or is to be paused, has failed
// or was cancelled. Its failed images are queued again. A job that has ended runs without its
// secret. The error wraps ErrNotFound if there is no such job, if another job does its work, or if
// its images were removed or its name refers to others now.
func (q *Jobs) Retry(ctx context.Context, n int64) error {
	return q.db.Update(ctx, fmt.Sprintf("retry job %d", n), func(tx database.Session) error {
		j, err := database.Get(ctx, tx, (*Job).fields, `SELECT `+jobColumns+` FROM jobs WHERE n = ?`+tx.Lock, n)
		if err != nil {
			return err
		}
		if j.State == wire.JobRunning && (j.Request == wire.JobPause || j.Request == wire.JobPauseAgain) {
			return tx.Exec(ctx, `UPDATE jobs SET request = 'again', run_at = `+tx.Clock+` WHERE n = ?`, n)
		}
		if j.State == wire.JobRunning || j.State == wire.JobDone {
			return fmt.Errorf("it is %s: %w among the jobs that wait or have failed", j.State, ErrNotFound)
		}
		if isEnded := j.State == wire.JobFailed || j.State == wire.JobCancelled; isEnded {
			if err := reopen(ctx, tx, j); err != nil {
				return err
			}
		}
		return tx.Exec(ctx, `UPDATE jobs SET state = 'queued', run_at = `+tx.Clock+`, attempts = 0, owner = '',
			updated = `+tx.Clock+` WHERE n = ?`, n)
	})
}

// reopen queues the failed images of an ended job again. The error wraps ErrNotFound if the job has
// images and none of them has failed, or if another job is open for the same work.
func reopen(ctx context.Context, tx database.Session, j Job) error {
	open, err := database.Get(ctx, tx, database.Value[bool],
		`SELECT EXISTS (SELECT 1 FROM jobs WHERE kind = ? AND key = ? AND `+openJob+`)`, j.Kind, j.Key)
	if err != nil {
		return err
	}
	if open {
		return fmt.Errorf("another job is about %s: %w", j.Key, ErrNotFound)
	}
	if j.Root == "" {
		return nil
	}
	none := fmt.Errorf("its images were removed, are ready, or %s is another image now: %w", j.Key, ErrNotFound)
	return tx.Change(ctx, none,
		`UPDATE images SET state = ?, error = '', updated = `+tx.Clock+` WHERE name = ? AND root = ? AND state = ?`,
		wire.StateQueued, j.Key, j.Root, wire.StateFailed)
}

// cancelJob is Jobs.Cancel for the open job of a kind and key, if there is one.
func cancelJob(ctx context.Context, tx database.Session, kind, key string) error {
	n, err := database.Get(ctx, tx, database.Value[int64], `UPDATE jobs SET
			request = CASE WHEN state = 'running' THEN 'cancel' ELSE '' END,
			state = CASE WHEN state = 'running' THEN state ELSE 'cancelled' END, updated = `+tx.Clock+`
		WHERE kind = ? AND key = ? AND `+openJob+` RETURNING n`, kind, key)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return forgetSecret(ctx, tx, n)
}
