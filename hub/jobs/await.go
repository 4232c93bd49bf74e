package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

const (
	// progressEvery is the interval in which Await sends the progress of a job that this process
	// runs.
	progressEvery = 200 * time.Millisecond
	// otherEvery is the interval in which Await calls over and reads the progress from the store,
	// for a job that this process does not run.
	otherEvery = time.Second
	// ownEvery is the interval in which Await calls over for a job that this process runs: Changed
	// reports only what happens in this process, not what another process does to the job.
	ownEvery = 5 * time.Second
	// patience is how long Await waits for a store that does not answer.
	patience = 5 * time.Minute
)

// Await waits until over reports true, and sends the progress of the job meanwhile. It calls over
// after each Changed of the job, and every few seconds.
func (q *Queue) Await(
	ctx context.Context, kind, key string, s *report.Sender, over func(ctx context.Context) (bool, error),
) error {
	w := &waiter{kind: kind, key: key, changed: make(chan struct{}, 1)}
	q.mu.Lock()
	q.waiting[w] = true
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.waiting, w)
	}()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	answered, looked := time.Now(), time.Time{} // when the store last answered, and was last asked
	for changed := true; ; {
		q.mu.Lock()
		here := q.runs(kind, key)
		q.mu.Unlock()
		lines, done, err := []wire.Progress(nil), false, error(nil)
		every := otherEvery
		if here != nil {
			lines, every = here.Lines(0), ownEvery
		}
		if changed || time.Since(looked) >= every {
			looked = time.Now()
			if done, err = over(ctx); err == nil && here == nil {
				lines, err = q.progress(ctx, kind, key)
			}
		}
		switch {
		case catalog.IsAway(err) && time.Since(answered) < patience && ctx.Err() == nil:
		case err != nil:
			return err
		default:
			answered = time.Now()
			if err := s.Send(lines); err != nil || done {
				return err
			}
		}
		changed = false
		select {
		case <-w.changed:
			changed = true
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AwaitEnd waits until a job is done, sends its progress meanwhile, and returns the job. Errors are
// those of Done and the catalog's.
func (q *Queue) AwaitEnd(
	ctx context.Context, kind, key string, n int64, s *report.Sender,
) (j catalog.Job, err error) {
	err = q.Await(ctx, kind, key, s, func(ctx context.Context) (done bool, err error) {
		if j, err = q.store.Get(ctx, n); err != nil {
			return false, err
		}
		return Done(j)
	})
	return j, err
}

// Done reports whether a job is done. The error says that it has failed, was cancelled, or is
// paused.
func Done(j catalog.Job) (done bool, err error) {
	switch j.State {
	case wire.JobFailed:
		return false, errors.New(j.Error)
	case wire.JobCancelled:
		return false, fmt.Errorf("job %d (%s, %s) was cancelled", j.N, j.Kind, j.Key)
	case wire.JobPaused:
		return false, PausedError(j)
	}
	return j.State == wire.JobDone, nil
}

// Progress returns the progress of an open job, or nothing if there is none. If another process
// runs the job, the progress may be a second old.
func (q *Queue) Progress(ctx context.Context, kind, key string) ([]wire.Progress, error) {
	q.mu.Lock()
	here := q.runs(kind, key)
	q.mu.Unlock()
	if here != nil {
		return here.Lines(maxLines), nil
	}
	return q.progress(ctx, kind, key)
}

// progress returns the progress of an open job, as its process has stored it.
func (q *Queue) progress(ctx context.Context, kind, key string) ([]wire.Progress, error) {
	j, err := q.store.Open(ctx, kind, key)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return Lines(j)
}

// Lines returns the first maxLines lines of a running job's progress. The job's process, which may
// be another one, stores them about once a second.
func Lines(j catalog.Job) (lines []wire.Progress, err error) {
	if len(j.Progress) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(j.Progress, &lines); err != nil {
		return nil, fmt.Errorf("parse the progress of job %d: %w", j.N, err)
	}
	return lines, nil
}

// waiter waits for a job in Await.
type waiter struct {
	kind, key string
	changed   chan struct{} // has an element if the job may have changed
}

// tell makes all calls of Await for a job look at it. q.mu is held.
func (q *Queue) tell(kind, key string) {
	for w := range q.waiting {
		if w.kind == kind && w.key == key {
			notify(w.changed)
		}
	}
}
