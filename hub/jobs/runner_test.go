package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/wire"
)

// The queues of a process together run as many jobs at a time as one queue alone. They take turns.
func TestQueuesShareARunner(t *testing.T) {
	const backlog = 20
	runner := jobs.NewRunner()
	stores := map[string]*catalog.Jobs{"busy": openJobs(t), "other": openJobs(t)}
	var (
		mu      sync.Mutex // guards the following
		order   []string
		running int
	)
	begin := make(chan struct{})
	queues := map[string]*jobs.Queue{}
	for name, store := range stores {
		q := runner.Queue(store, name, slog.New(slog.DiscardHandler))
		queues[name] = q
		q.Add(jobs.Kind{Name: kind, AtOnce: 1, Run: func(context.Context, *jobs.Running) error {
			mu.Lock()
			order = append(order, name)
			if running++; running > 1 {
				t.Errorf("%d jobs run at a time, want one", running)
			}
			mu.Unlock()
			<-begin
			mu.Lock()
			defer mu.Unlock()
			running--
			return nil
		}})
	}
	var numbers []int64
	for i := range backlog {
		numbers = append(numbers, add(t, stores["busy"], string(rune('a'+i)), "", 0))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	await(t, stores["busy"], numbers[0], wire.JobRunning)
	last := add(t, stores["other"], "a", "", 0)
	queues["other"].Changed(kind, "a")
	close(begin)
	await(t, stores["other"], last, wire.JobDone)
	for _, n := range numbers {
		await(t, stores["busy"], n, wire.JobDone)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v, want Canceled", err)
	}
	mu.Lock()
	defer mu.Unlock()
	at := 0
	for order[at] != "other" {
		at++
	}
	if at > 3 {
		t.Errorf("the other queue's job ran after %d jobs of the backlog, want at most 3: %v", at, order)
	}
}

// looks counts how often a store is asked for a job.
type looks struct {
	*catalog.Jobs
	n atomic.Int64
}

func (l *looks) Claim(
	ctx context.Context, owner string, slots []catalog.Slot, lease time.Duration,
) (catalog.Job, error) {
	l.n.Add(1)
	return l.Jobs.Claim(ctx, owner, slots, lease)
}

// While one queue has a backlog, the stores of idle queues are not asked after each of its jobs:
// that would be thousands of reads.
func TestIdleQueuesAreLeftAlone(t *testing.T) {
	const backlog = 50
	runner := jobs.NewRunner()
	busy, idle := openJobs(t), &looks{Jobs: openJobs(t)}
	for _, store := range []jobs.Store{idle, busy} {
		q := runner.Queue(store, "worker", slog.New(slog.DiscardHandler))
		q.Add(jobs.Kind{Name: kind, AtOnce: 1, Run: func(context.Context, *jobs.Running) error { return nil }})
	}
	var numbers []int64
	for i := range backlog {
		numbers = append(numbers, add(t, busy, fmt.Sprint(i), "", 0))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	begun := time.Now()
	go func() { done <- runner.Run(ctx) }()
	for _, n := range numbers {
		await(t, busy, n, wire.JobDone)
	}
	cancel()
	<-done
	polls := int64(time.Since(begun)/time.Second) + 1
	if n := idle.n.Load(); n > 5+2*polls {
		t.Errorf("the idle queue's store was asked %d times in %v, during %d jobs of another queue, want at most %d", n,
			time.Since(begun), backlog, 5+2*polls)
	}
}
