package jobs

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"time"

	"lighter/hub/catalog"
)

// Runner runs the jobs of the queues of one process. Together, the queues run as many jobs of a
// kind at a time as one queue would run alone. They take turns, so that no queue waits for the
// backlog of another.
type Runner struct {
	queues []*Queue
	first  int           // the queue whose turn it is, modulo their number
	wake   chan struct{} // has an element if a queue is due
}

// claimTimeout bounds the time for which other queues wait while a store looks for a job.
const claimTimeout = 10 * time.Second

// NewRunner returns a runner without queues.
func NewRunner() *Runner { return &Runner{wake: make(chan struct{}, 1)} }

// Queue adds a queue for the jobs of a store. owner is a name of this process, which no other
// process has, and which it has again after a restart. Queue is called before Run.
func (r *Runner) Queue(store Store, owner string, log *slog.Logger) *Queue {
	// Each start has an owner of its own: a job that ends the process counts as one more attempt.
	owner += "/" + rand.Text()
	q := &Queue{Lease: defaultLease, RetryDelay: retryDelay, ReadPauses: readPauses, DueInterval: dueInterval,
		runner: r, store: store, owner: owner, log: log, running: map[int64]*Running{}, waiting: map[*waiter]bool{}}
	r.queues = append(r.queues, q)
	return q
}

// Run runs jobs until ctx ends, and then waits for the running ones.
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

// claim claims and starts a job of each queue that may have one: it is due, or more slots are free
// than when its store was last asked. claim reports whether it has started a job.
func (r *Runner) claim(ctx context.Context) (claimed bool) {
	first, running := r.first, r.running()
	for i := range r.queues {
		turn := (first + i) % len(r.queues)
		q := r.queues[turn]
		if ctx.Err() != nil {
			return false
		}
		slots := room(q.kinds, running)
		if !q.due.Swap(false) && !isMore(slots, q.offered) {
			continue
		}
		q.offered = slots
		try, cancel := context.WithTimeout(ctx, claimTimeout)
		j, err := q.store.Claim(try, q.owner, slots, q.Lease)
		cancel()
		switch {
		case err == nil:
			q.due.Store(true) // there may be more
			claimed, r.first = true, turn+1
			q.start(ctx, j)
			running = r.running()
		case !errors.Is(err, catalog.ErrNotFound) && ctx.Err() == nil:
			q.log.Error("no job could be read from the catalog", "err", err)
		}
	}
	return claimed
}

// count is the number of running jobs of a kind: of all, and of those without a priority above 0.
type count struct{ all, low int }

// running returns the numbers of running jobs, by kind.
func (r *Runner) running() map[string]count {
	counts := map[string]count{}
	for _, q := range r.queues {
		q.count(counts)
	}
	return counts
}

// room returns the free slots: one for each kind of which further jobs may run.
func room(kinds []Kind, running map[string]count) (slots []catalog.Slot) {
	for _, k := range kinds {
		switch n := running[k.Name]; {
		case n.all >= k.AtOnce:
		case n.low >= k.AtOnce-k.Urgent:
			slots = append(slots, catalog.Slot{Kind: k.Name, Priority: 1})
		default:
			slots = append(slots, catalog.Slot{Kind: k.Name, Priority: Lowest})
		}
	}
	return slots
}

// isMore reports whether a job fits into the slots now that did not fit into those before.
func isMore(now, before []catalog.Slot) bool {
	return slices.ContainsFunc(now, func(s catalog.Slot) bool {
		return !slices.ContainsFunc(before, func(b catalog.Slot) bool {
			return b.Kind == s.Kind && b.Priority <= s.Priority
		})
	})
}

// dueAll makes the runner look at all queues.
func (r *Runner) dueAll() {
	for _, q := range r.queues {
		q.due.Store(true)
	}
}
