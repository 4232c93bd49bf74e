package jobs

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"lighter/hub/catalog"
)

// Runner runs the jobs of the queues of one process. Together they run as many jobs of a kind at a
// time as one of them would run alone. They take turns, so that none waits for the backlog of
// another.
type Runner struct {
	queues []*Queue
	first  int           // the queue whose turn it is
	wake   chan struct{} // has an element if a queue is due
}

// claimTimeout bounds the time for which other queues wait while a store looks for a job.
const claimTimeout = 10 * time.Second

// NewRunner returns a runner without queues.
func NewRunner() *Runner { return &Runner{wake: make(chan struct{}, 1)} }

// Queue adds a queue of jobs that owner runs: a name of this process that no other one has, and
// that it has again after a restart. It is called before Run.
func (r *Runner) Queue(store Store, owner string, log *slog.Logger) *Queue {
	// Each start has a name of its own: a job that ends the process counts as one more attempt.
	owner += "/" + rand.Text()
	q := &Queue{Lease: defaultLease, RetryDelay: retryDelay, DueInterval: dueInterval, runner: r, store: store,
		owner: owner, log: log, running: map[int64]*Running{}, waiting: map[*waiter]bool{}}
	r.queues = append(r.queues, q)
	return q
}

// Run runs jobs until ctx ends, and then waits for those that run.
func (r *Runner) Run(ctx context.Context) error {
	for _, q := range r.queues {
		defer q.work.Wait()
		q.work.Go(func() { q.addDue(ctx) })
		q.work.Go(func() { q.forget(ctx) })
		q.due.Store(true)
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		if r.claim(ctx) {
			continue
		}
		select {
		case <-r.wake:
		case <-poll.C:
			r.dueAll()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// claim claims and starts a job of each queue that is due. It reports whether there was any.
func (r *Runner) claim(ctx context.Context) (claimed bool) {
	first := r.first
	for i := range r.queues {
		turn := (first + i) % len(r.queues)
		q := r.queues[turn]
		if ctx.Err() != nil {
			return false
		}
		if !q.due.Swap(false) {
			continue
		}
		try, cancel := context.WithTimeout(ctx, claimTimeout)
		j, err := q.store.Claim(try, q.owner, r.slots(q.kinds), q.Lease)
		cancel()
		switch {
		case err == nil:
			q.due.Store(true) // there may be more
			claimed, r.first = true, turn+1
			q.start(ctx, j)
		case !errors.Is(err, catalog.ErrNotFound) && ctx.Err() == nil:
			q.log.Error("read the queue of jobs", "err", err)
		}
	}
	return claimed
}

// slots returns the room for further jobs.
func (r *Runner) slots(kinds []Kind) (slots []catalog.Slot) {
	for _, k := range kinds {
		all, low := 0, 0
		for _, q := range r.queues {
			a, l := q.count(k.Name)
			all, low = all+a, low+l
		}
		switch {
		case all >= k.AtOnce:
		case low >= k.AtOnce-k.Urgent:
			slots = append(slots, catalog.Slot{Kind: k.Name, Priority: 1})
		default:
			slots = append(slots, catalog.Slot{Kind: k.Name, Priority: Low})
		}
	}
	return slots
}

// dueAll makes the runner look at all queues.
func (r *Runner) dueAll() {
	for _, q := range r.queues {
		q.due.Store(true)
	}
	notify(r.wake)
}
