package jobs_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/wire"
)

// The queues of several processes add a periodic job once when it is due, and again when the time
// has passed since its end.
func TestPeriodicJob(t *testing.T) {
	c := openJobs(t)
	runs := make(chan string, 100)
	queue := func(owner string, every time.Duration) (stop func()) {
		q := jobs.NewRunner().Queue(c, owner, slog.New(slog.DiscardHandler))
		q.DueInterval = time.Millisecond
		run := func(_ context.Context, j *jobs.Running) error {
			runs <- j.Key
			return nil
		}
		q.Add(jobs.Kind{Name: kind, Key: "daily", Every: every, AtOnce: 1, Run: run})
		q.Add(jobs.Kind{Name: "never", AtOnce: 1})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- q.Run(ctx) }()
		return sync.OnceFunc(func() {
			cancel()
			<-done
		})
	}
	stopA, stopB := queue("a", time.Hour), queue("b", time.Hour)
	defer stopA()
	defer stopB()
	if key := <-runs; key != "daily" {
		t.Errorf("job %q ran, want the periodic one", key)
	}
	select {
	case <-runs:
		t.Error("the periodic job ran twice within an hour")
	case <-time.After(200 * time.Millisecond): // the queues check about a hundred times whether it is due
	}
	stopA()
	stopB()
	stopC := queue("c", time.Millisecond)
	defer stopC()
	for range 3 {
		<-runs
	}
}

// counting counts the checks whether a periodic job is due.
type counting struct {
	*catalog.Jobs
	checks *atomic.Int64
}

func (c counting) AddDue(
	ctx context.Context, j catalog.Job, every time.Duration,
) (queued bool, after time.Duration, err error) {
	c.checks.Add(1)
	return c.Jobs.AddDue(ctx, j, every)
}

// After the end of a periodic job, the queue does not check before the next job can be due: a check
// may read all jobs that have ended.
func TestPeriodicJobIsLookedForWhenDue(t *testing.T) {
	store := counting{openJobs(t), new(atomic.Int64)}
	q := jobs.NewRunner().Queue(store, "a", slog.New(slog.DiscardHandler))
	q.DueInterval = time.Millisecond
	numbers := make(chan int64, 1)
	q.Add(jobs.Kind{Name: kind, Key: "daily", Every: time.Hour, AtOnce: 1,
		Run: func(_ context.Context, j *jobs.Running) error {
			numbers <- j.N
			return nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	await(t, store.Jobs, <-numbers, wire.JobDone)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // room for a hundred checks
		before := store.checks.Load()
		time.Sleep(100 * time.Millisecond)
		if store.checks.Load() == before {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the queue still checks, an hour before the job is due")
		}
	}
	cancel()
	<-done
}

// forgetful sends the age with which Forget is called, and forgets nothing.
type forgetful struct {
	*catalog.Jobs
	age chan time.Duration
}

func (f forgetful) Forget(_ context.Context, age time.Duration, _ int) (int64, error) {
	f.age <- age
	return 0, nil
}

// The last job of a periodic kind is kept until the next one is due, however seldom that is.
func TestPeriodicJobIsKept(t *testing.T) {
	const month = 30 * 24 * time.Hour
	store := forgetful{openJobs(t), make(chan time.Duration, 1)}
	start(t, store, "a", jobs.Kind{Every: month, Run: func(context.Context, *jobs.Running) error { return nil }}, 0)
	if age := <-store.age; age <= month {
		t.Errorf("jobs are forgotten after %v, want more than %v", age, month)
	}
}
