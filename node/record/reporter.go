package record

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"lighter/format/trace"
	"lighter/sleep"
)

// ErrRefused says that no hub accepts a trace. Sending the trace again does not help.
var ErrRefused = errors.New("refused")

// Reporter sends traces to a hub, one at a time, and at lower priority than reads. It drops a trace
// that it cannot send. The loss only makes later starts slower, until another node reports a start
// of the image.
type Reporter struct {
	send     func(ctx context.Context, t trace.Trace) error
	busy     func() bool
	maxDelay time.Duration // largest random delay
	log      *slog.Logger
	queue    chan waiting
	pause    [maxTries - 1]time.Duration // pauses; shorter in tests

	reported, dropped atomic.Int64
}

// waiting is a trace with the time at which to send it.
type waiting struct {
	trace.Trace
	at time.Time
}

// NewReporter returns a reporter that sends traces with send. The error of send wraps ErrRefused if
// the trace was refused. The reporter delays each trace by a random time of at most spread, because
// thousands of nodes may start the same image in the same second. Before each attempt to send, it
// waits for maxYield at most while busy returns true, that is, while readers use the link.
func NewReporter(send func(ctx context.Context, t trace.Trace) error, busy func() bool,
	spread time.Duration, log *slog.Logger) *Reporter {
	return &Reporter{send: send, busy: busy, maxDelay: spread, log: log, queue: make(chan waiting, maxQueued),
		pause: pauses}
}

// random returns a random duration up to d.
func random(d time.Duration) time.Duration { return rand.N(d + 1) }

// Add queues a trace, or drops it if the queue is full. It does not block.
func (r *Reporter) Add(t trace.Trace) {
	select {
	case r.queue <- waiting{t, time.Now().Add(random(r.maxDelay))}:
	default:
		r.drop(t, errors.New("the queue of reports is full"))
	}
}

func (r *Reporter) drop(t trace.Trace, cause error) {
	r.dropped.Add(1)
	r.log.Info("trace dropped", "tree", t.Tree.Short(), "reads", len(t.Reads), "err", cause)
}

// Run sends queued traces until ctx is done. Traces that are still queued then are lost.
func (r *Reporter) Run(ctx context.Context) {
	for {
		select {
		case t := <-r.queue:
			if sleep.For(ctx, time.Until(t.at)); ctx.Err() == nil {
				r.report(ctx, t.Trace)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reporter) report(ctx context.Context, t trace.Trace) {
	for try := 0; ; try++ {
		r.wait(ctx)
		err := r.send(ctx, t)
		switch {
		case err == nil:
			r.reported.Add(1)
			r.log.Debug("trace reported", "tree", t.Tree.Short(), "reads", len(t.Reads))
			return
		case ctx.Err() != nil:
			return
		case try == maxTries-1, errors.Is(err, ErrRefused):
			r.drop(t, err)
			return
		}
		sleep.For(ctx, r.pause[try]+random(r.pause[try]))
	}
}

// wait blocks while a reader of this node needs the link, but at most for maxYield.
func (r *Reporter) wait(ctx context.Context) {
	for end := time.Now().Add(maxYield); r.busy() && ctx.Err() == nil && time.Now().Before(end); {
		sleep.For(ctx, yieldInterval)
	}
}

// ReportStats are a reporter's figures since it was made.
type ReportStats struct {
	Reported int64 `json:"reported"` // traces that a hub has accepted
	Dropped  int64 `json:"dropped"`  // traces that no hub has accepted, or that did not fit into the queue
	Waiting  int   `json:"waiting"`  // traces in the queue
}

// Stats returns the reporter's figures.
func (r *Reporter) Stats() ReportStats {
	return ReportStats{Reported: r.reported.Load(), Dropped: r.dropped.Load(), Waiting: len(r.queue)}
}
