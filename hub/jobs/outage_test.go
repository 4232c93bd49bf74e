package jobs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/wire"
)

// outage is a store that a process cannot reach while on is set.
type outage struct {
	*catalog.Jobs
	on atomic.Bool
}

func (d *outage) Claim(
	ctx context.Context, owner string, slots []catalog.Slot, lease time.Duration,
) (catalog.Job, error) {
	if d.on.Load() {
		return catalog.Job{}, errors.New("connection refused")
	}
	return d.Jobs.Claim(ctx, owner, slots, lease)
}

func (d *outage) Extend(ctx context.Context, l catalog.Lease, lease time.Duration, progress []byte) (string, error) {
	if d.on.Load() {
		return "", errors.New("connection refused")
	}
	return d.Jobs.Extend(ctx, l, lease, progress)
}

func (d *outage) Uncount(ctx context.Context, l catalog.Lease) error {
	if d.on.Load() {
		return errors.New("connection refused")
	}
	return d.Jobs.Uncount(ctx, l)
}

// Outages of the store do not count as attempts, however many processes lose their leases.
func TestOutagesDoNotCount(t *testing.T) {
	t.Parallel()
	c := openJobs(t)
	n := add(t, c, "a", "", 0)
	var runs atomic.Int32
	for _, owner := range []string{"a", "b"} {
		store := &outage{Jobs: c}
		start(t, store, owner, jobs.Kind{Run: func(ctx context.Context, _ *jobs.Running) error {
			if runs.Add(1) > 4 {
				return nil
			}
			store.on.Store(true)
			<-ctx.Done()
			time.AfterFunc(1500*time.Millisecond, func() { store.on.Store(false) }) // the other process is first
			return ctx.Err()
		}}, 2*time.Second)
	}
	if j := await(t, c, n, wire.JobDone); j.Error != "" || runs.Load() != 5 {
		t.Errorf("%+v after %d runs, want the fifth to be done", j, runs.Load())
	}
}

// A process that cannot extend its lease stops working, and another process runs the job.
func TestLeaseEnds(t *testing.T) {
	c := openJobs(t)
	first := &outage{Jobs: c}
	lost, working := make(chan error, 1), make(chan struct{})
	_, stop := start(t, first, "a", jobs.Kind{Run: func(ctx context.Context, _ *jobs.Running) error {
		first.on.Store(true)
		close(working)
		<-ctx.Done()
		lost <- context.Cause(ctx)
		return ctx.Err()
	}}, 2*time.Second)
	n := add(t, c, "a", "", 0)
	<-working
	_, _ = start(t, c, "b", jobs.Kind{Run: func(context.Context, *jobs.Running) error { return nil }}, 0)
	if err := <-lost; !errors.Is(err, catalog.ErrLost) {
		t.Errorf("the first process ended with %v, want ErrLost", err)
	}
	stop()
	if j := await(t, c, n, wire.JobDone); j.Attempts != 2 {
		t.Errorf("%+v, want the second attempt", j)
	}
}

// silent is a store that does not answer End, like a database that cannot be reached.
type silent struct{ *catalog.Jobs }

func (silent) End(ctx context.Context, _ catalog.Lease, _ catalog.Outcome) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// A queue ends, though the store does not answer.
func TestQueueEndsWithoutItsStore(t *testing.T) {
	store := silent{openJobs(t)}
	ran := make(chan bool)
	_, stop := start(t, store, "a", jobs.Kind{Run: func(context.Context, *jobs.Running) error {
		close(ran)
		return nil
	}}, 0)
	add(t, store.Jobs, "a", "", 0)
	<-ran
	ended := make(chan bool)
	go func() {
		stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the queue waits for the store")
	}
}
