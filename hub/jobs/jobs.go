// Package jobs runs the hub's jobs: pieces of work that the catalog keeps until they have ended.
// Any process of the hub may run any job, and one process runs a job at a time.
//
// A process runs a few jobs of each Kind at once. While it works on a job, it extends its lease of
// the job. If the lease ends because the process could not extend it, the process stops the work,
// and another process runs the job. After a restart, a process gets back its jobs at once.
//
// A job whose payload is replaced while it runs is interrupted, and runs again with the new one.
//
// A process may have several queues, of several stores (Runner).
//
// Jobs of kinds that the queue does not have stay as they are: a process of another release may run
// them. Jobs of kinds that no release has any more are cancelled (Retire).
//
// The queue itself adds the jobs of a periodic Kind. Each process asks the catalog whether the next
// job is due, and the catalog lets only one process add it.
package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lighter/hub/away"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

// Store has the jobs. Those of the hub's catalog implement it.
type Store interface {
	Claim(ctx context.Context, owner string, slots []catalog.Slot, lease time.Duration) (catalog.Job, error)
	Extend(ctx context.Context, l catalog.Lease, lease time.Duration, progress []byte) (request string, err error)
	End(ctx context.Context, l catalog.Lease, o catalog.Outcome) (state string, err error)
	Uncount(ctx context.Context, l catalog.Lease) error
	Get(ctx context.Context, n int64) (catalog.Job, error)
	Open(ctx context.Context, kind, key string) (catalog.Job, error)
	Cancel(ctx context.Context, n int64) (state string, err error)
	Pause(ctx context.Context, n int64) (state string, err error)
	Retry(ctx context.Context, n int64) error
	AddDue(ctx context.Context, j catalog.Job, every time.Duration) (queued bool, after time.Duration, err error)
	Forget(ctx context.Context, age time.Duration, limit int) (removed int64, err error)
	Retire(ctx context.Context, kinds []string) (retired int, err error)
}

var _ Store = (*catalog.Jobs)(nil)

// Kind is a kind of jobs.
type Kind struct {
	Name   string
	AtOnce int // jobs that one process runs at a time
	// Urgent of the AtOnce jobs can only be jobs of a priority above 0.
	Urgent int
	// Tries bounds the attempts at a job that fails, with Pauses in between. 0: one attempt.
	Tries  int64
	Pauses sleep.Backoff
	// Every is the time from the end of a periodic job to the next one, which the queue of any
	// process adds with the key Key. 0: the kind is not periodic, and its users add the jobs.
	Every time.Duration
	Key   string
	// Run does the work of a job. ctx ends if the job is lost or interrupted, or the hub ends; its
	// cause says why. A Run that is interrupted may leave things undone, because it is called
	// again. An error that wraps catalog.ErrLost says that Run has found out first that the job is
	// lost or interrupted. After another error the job has failed, unless IsRetried or Tries allow
	// another attempt. The images that a failed job was to ingest fail with the same reason.
	Run Run
}

// Run does the work of a job.
type Run func(ctx context.Context, j *Running) error

// Priorities below that of what users ask for.
const (
	// Low is the priority of work for which no user waits.
	Low = -1
	// Lowest is the lowest priority: jobs of every other priority run first.
	Lowest = -2
)

// RetryError ends an attempt at a job that is to be tried again after a pause.
type RetryError struct {
	Err   error
	After time.Duration // the pause before the next attempt; 0: Queue.RetryDelay

	counted bool // the attempt counts (boundReads)
}

func (e *RetryError) Error() string { return e.Err.Error() }
func (e *RetryError) Unwrap() error { return e.Err }

// IsRetried reports whether the queue runs a job again after such an error, however often it
// happens. These are RetryErrors, and errors that the job did not cause: a store of the hub is
// away, or the disk is full (IsDisk). The exception is an object that cannot be read although its
// store works (boundReads).
func IsRetried(err error) bool {
	return errors.As(err, new(*RetryError)) || away.Is(err) || IsDisk(err)
}

// IsDisk reports whether an error of a job is about the disk of this process: the disk is full, or
// the job's files in the scratch space were deleted.
func IsDisk(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, fs.ErrNotExist)
}

// Running is a job that this process runs.
type Running struct {
	catalog.Job
	report.Progress
	// Result is what a successful Run has found out, as JSON. It is kept with the job.
	Result []byte

	cancel context.CancelCauseFunc
	look   chan struct{} // has an element if the lease is to be extended now
}

// Queue runs jobs. It is safe for concurrent use.
type Queue struct {
	// Lease is how long a job stays with a process that does not extend its lease. It is set before
	// Run.
	Lease time.Duration
	// RetryDelay is the pause after an error that IsRetried. It is set before Run.
	RetryDelay time.Duration
	// ReadPauses are the pauses between the attempts at a job that cannot read an object although
	// the object's store works. There are fewer than maxAttempts. They are set before Run.
	ReadPauses []time.Duration
	// DueInterval is the time between two checks whether a periodic job is due. It is set before
	// Run.
	DueInterval time.Duration

	runner *Runner
	due    atomic.Bool // there may be a job to run
	// offered has the slots that were free when the runner last asked the store for a job. Only the
	// runner uses it.
	offered []catalog.Slot
	store   Store
	owner   string
	kinds   []Kind
	retired []string // names of kinds that only earlier releases have
	log     *slog.Logger
	work    sync.WaitGroup

	mu      sync.Mutex // guards the following
	running map[int64]*Running
	waiting map[*waiter]bool
}

const (
	defaultLease = 30 * time.Second
	pollEvery    = time.Second     // between looks for jobs that other processes queued, or that are due now
	reportEvery  = time.Second     // interval in which a job's progress is stored if it has changed
	storeRetry   = 2 * time.Second // after an error of the store
	retryDelay   = 5 * time.Second // after an error that IsRetried
	dueInterval  = time.Minute

	maxAttempts = 3   // attempts at a job; it has failed if its process ends during each of them
	maxLines    = 100 // lines of a job's progress in the store
)

var (
	// ErrInterrupted is the cause of a ctx that ends because the job is to run again, to pause or
	// to be cancelled.
	ErrInterrupted = errors.New("the job was interrupted")
	errAttempts    = errors.New("the hub ended each time that it ran the job")
)

// Add adds a kind. It is called before Run.
func (q *Queue) Add(k Kind) {
	k.Run = q.boundReads(k.Run)
	q.kinds = append(q.kinds, k)
}

// Retire adds a kind that only earlier releases have. Its jobs are cancelled at the start, and once
// an hour, because a process of an earlier release may add further ones. Retire is called before
// Run.
func (q *Queue) Retire(kind string) { q.retired = append(q.retired, kind) }

// Around replaces the work of some kinds by the result of wrap. It is called after Add and before
// Run.
func (q *Queue) Around(wrap func(Run) Run, kinds ...string) {
	for i := range q.kinds {
		if slices.Contains(kinds, q.kinds[i].Name) {
			q.kinds[i].Run = wrap(q.kinds[i].Run)
		}
	}
}

// Kinds returns the names of the kinds.
func (q *Queue) Kinds() (names []string) {
	for _, k := range q.kinds {
		names = append(names, k.Name)
	}
	return names
}

// Run runs the queue's runner.
func (q *Queue) Run(ctx context.Context) error { return q.runner.Run(ctx) }

// Changed reports that a job was added or changed, or that the images that the job ingests have
// changed. So the queue looks for a job to run, the job's worker looks for a request, and Await
// calls over.
func (q *Queue) Changed(kind, key string) {
	q.due.Store(true)
	notify(q.runner.wake)
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.runs(kind, key); r != nil {
		notify(r.look)
	}
	q.tell(kind, key)
}

// runs returns the job of a kind and key if it runs here, or nil. q.mu is held.
func (q *Queue) runs(kind, key string) *Running {
	for _, r := range q.running {
		if r.Kind == kind && r.Key == key {
			return r
		}
	}
	return nil
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is notified already
	}
}

// count adds the running jobs to the counts of their kinds.
func (q *Queue) count(counts map[string]count) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.running {
		n := counts[r.Kind]
		if n.all++; r.Priority <= 0 {
			n.low++
		}
		counts[r.Kind] = n
	}
}

func (q *Queue) start(life context.Context, j catalog.Job) {
	ctx, cancel := context.WithCancelCause(life)
	r := &Running{Job: j, cancel: cancel, look: make(chan struct{}, 1)}
	q.mu.Lock()
	q.running[j.N] = r
	q.tell(j.Kind, j.Key)
	q.mu.Unlock()
	q.work.Go(func() {
		defer cancel(nil)
		q.run(ctx, r)
		// A lost attempt counts only if its process has ended. This process goes on.
		if errors.Is(context.Cause(ctx), catalog.ErrLost) {
			_ = q.persist(life, "take back an attempt", func(ctx context.Context) error {
				return q.store.Uncount(ctx, j.Lease())
			})
		}
		q.mu.Lock()
		if q.running[j.N] == r { // it may have been lost, and claimed again
			delete(q.running, j.N)
		}
		q.tell(j.Kind, j.Key)
		q.mu.Unlock()
		q.due.Store(true)
		notify(q.runner.wake)
	})
}

// run runs a job and stores how that ended.
func (q *Queue) run(ctx context.Context, r *Running) {
	started := time.Now()
	log := q.log.With("kind", r.Kind, "key", r.Key)
	kind := q.kind(r.Kind)
	extending, stop := context.WithCancel(ctx)
	var extender sync.WaitGroup
	extender.Go(func() { q.extend(extending, r) })
	err := errAttempts
	if r.Attempts <= maxAttempts {
		err = kind.Run(ctx, r)
	}
	stop()
	extender.Wait()
	cause := context.Cause(ctx)
	o := catalog.Outcome{State: wire.JobDone}
	retry, request := (*RetryError)(nil), (*requestError)(nil)
	if IsRetried(err) && !errors.As(err, &retry) {
		err = &RetryError{Err: err}
	}
	switch {
	case err == nil:
		o.Result = r.Result
	case errors.Is(cause, catalog.ErrLost):
		log.Warn("job was lost to another process")
		return
	case errors.As(cause, &request):
		o = catalog.Outcome{State: request.state, Uncounted: true}
	case ctx.Err() != nil || errors.Is(err, catalog.ErrLost): // the hub ends; or End knows the request
		o = catalog.Outcome{State: wire.JobQueued, Uncounted: true}
	case errors.As(err, &retry):
		o = catalog.Outcome{State: wire.JobQueued, Uncounted: !retry.counted,
			Delay: cmp.Or(retry.After, q.RetryDelay), Error: report.Reason(err)}
		log.Warn("job is tried again", "err", report.Logged(err), "duration", o.Delay)
	case r.Attempts < kind.Tries:
		o = catalog.Outcome{State: wire.JobQueued, Delay: kind.Pauses.After(int(r.Attempts)), Error: report.Reason(err)}
		log.Warn("job failed and is tried again", "err", report.Logged(err), "duration", o.Delay)
	default:
		o = catalog.Outcome{State: wire.JobFailed, Error: report.Reason(err)}
	}
	_ = q.persist(ctx, "end job", func(ctx context.Context) error {
		state, err := q.store.End(ctx, r.Lease(), o)
		if err == nil {
			log.Debug("job ended", "state", state, "duration", time.Since(started), "err", o.Error)
		} else if errors.Is(err, catalog.ErrLost) {
			err = nil
		}
		return err
	})
}

func (q *Queue) kind(name string) Kind {
	for _, k := range q.kinds {
		if k.Name == name {
			return k
		}
	}
	return Kind{Name: name}
}

// requestError is the cause of a ctx that ends because the job was cancelled, paused or given
// another payload. state is the state that the job gets.
type requestError struct{ state string }

func (e *requestError) Error() string { return ErrInterrupted.Error() }
func (e *requestError) Unwrap() error { return ErrInterrupted }

// extend keeps the lease until ctx ends. It interrupts the job if the lease is lost, or if a
// request is to stop the job.
func (q *Queue) extend(ctx context.Context, r *Running) {
	extended := time.Now() // about when the current lease began
	var progress []byte
	for {
		select {
		case <-r.look:
		case <-time.After(reportEvery):
			now, err := json.Marshal(r.Lines(maxLines))
			if err == nil && bytes.Equal(now, progress) && time.Since(extended) < q.Lease/6 {
				continue
			}
			progress = now
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		try, cancel := context.WithTimeout(ctx, q.Lease)
		request, err := q.store.Extend(try, r.Lease(), q.Lease, progress)
		cancel()
		if err == nil {
			extended = begun
			err = requested(request)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, catalog.ErrLost) || errors.Is(err, ErrInterrupted):
			r.cancel(err)
			return
		case err != nil && time.Since(extended) >= q.Lease:
			r.cancel(fmt.Errorf("%w: %w", catalog.ErrLost, err))
			return
		case err != nil:
			q.log.Error("the lease of a job could not be extended", "kind", r.Kind, "key", r.Key, "err", err)
		}
	}
}

// requested returns a *requestError if a job is to stop.
func requested(request string) error {
	switch request {
	case wire.JobCancel:
		return &requestError{wire.JobCancelled}
	case wire.JobPause, wire.JobPauseAgain:
		return &requestError{wire.JobPaused}
	case wire.JobRestart:
		return &requestError{wire.JobQueued}
	}
	return nil
}

// persist repeats a write to the catalog until it succeeds. After the end of ctx it tries once, for
// some seconds. If that fails, the job runs again when its lease has ended.
func (q *Queue) persist(ctx context.Context, what string, write func(ctx context.Context) error) error {
	for {
		try, end := catalog.Outlast(ctx)
		err := write(try)
		end()
		if err == nil {
			return nil
		}
		q.log.Error("the state of a job could not be written to the catalog", "operation", what, "err", err)
		if !sleep.For(ctx, storeRetry) {
			return err
		}
	}
}
