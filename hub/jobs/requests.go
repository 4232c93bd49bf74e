package jobs

import (
	"context"
	"fmt"

	"lighter/hub/catalog"
)

// Cancel ends an open job. A running job ends when its worker has noticed. Cancel does not wait for
// the worker: the returned job may still be running. The error wraps catalog.ErrNotFound if there
// is no such open job.
func (q *Queue) Cancel(ctx context.Context, n int64) (catalog.Job, error) {
	if _, err := q.store.Cancel(ctx, n); err != nil {
		return catalog.Job{}, err
	}
	return q.changedJob(ctx, n)
}

// Pause stops an open job until Retry. The error wraps catalog.ErrNotFound if there is no such open
// job.
func (q *Queue) Pause(ctx context.Context, n int64) (catalog.Job, error) {
	if _, err := q.store.Pause(ctx, n); err != nil {
		return catalog.Job{}, err
	}
	return q.changedJob(ctx, n)
}

// Retry makes a job that waits, is paused, has failed or was cancelled run as soon as possible. The
// error wraps catalog.ErrNotFound if there is no such job, or if another job does its work.
func (q *Queue) Retry(ctx context.Context, n int64) (catalog.Job, error) {
	if err := q.store.Retry(ctx, n); err != nil {
		return catalog.Job{}, err
	}
	return q.changedJob(ctx, n)
}

// PausedError returns the error of a client that waits for a paused job.
func PausedError(j catalog.Job) error {
	return fmt.Errorf("job %d (%s, %s) is paused: `lighter jobs retry %d` lets it go on", j.N, j.Kind, j.Key, j.N)
}

func (q *Queue) changedJob(ctx context.Context, n int64) (catalog.Job, error) {
	j, err := q.store.Get(ctx, n)
	q.Changed(j.Kind, j.Key)
	return j, err
}
