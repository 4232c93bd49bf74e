package record

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"lighter/format/trace"
)

const (
	// maxQueued bounds the traces that wait to be reported, each of less than 1 MiB.
	maxQueued = 32
	// tries is how often it is tried to report one; pauses are between them, and as
	// much again by chance.
	tries = 3
	// politeness is how long the readers of this node are let go before, at most,
	// and politeStep how soon it is looked again.
	politeness = time.Minute
	politeStep = 200 * time.Millisecond
)

var pauses = [tries - 1]time.Duration{10 * time.Second, time.Minute}

// ErrRefused says that no hub will take a trace, however often it is sent.
var ErrRefused = errors.New("refused")

// Reporter reports traces, one after the other, behind all else. One that cannot
// be reported is dropped: the image's next start will do as well.
type Reporter struct {
	send  func(ctx context.Context, t trace.Trace) error
	busy  func() bool
	after time.Duration // at most, by chance
	log   *slog.Logger
	queue chan waiting
	pause [tries - 1]time.Duration // pauses, but in tests

	reported, dropped atomic.Int64
}

// waiting is a trace that is to be reported then.
type waiting struct {
	trace.Trace
	at time.Time
}

// NewReporter reports with send, whose error wraps ErrRefused where that applies,
// at some time within spread, for thousands of nodes may start the same at the same
// second, and later while busy says that others use the link.
func NewReporter(send func(ctx context.Context, t trace.Trace) error, busy func() bool, spread time.Duration, log *slog.Logger) *Reporter {
	return &Reporter{send: send, busy: busy, after: spread, log: log, queue: make(chan waiting, maxQueued), pause: pauses}
}

// byChance returns up to d.
func byChance(d time.Duration) time.Duration { return rand.N(d + 1) }

// Add has a trace reported, if there is room for it. It does not wait.
func (r *Reporter) Add(t trace.Trace) {
	select {
	case r.queue <- waiting{t, time.Now().Add(byChance(r.after))}:
	default:
		r.drop(t, errors.New("too many wait to be reported"))
	}
}

func (r *Reporter) drop(t trace.Trace, cause error) {
	r.dropped.Add(1)
	r.log.Info("a trace is dropped", "tree", t.Tree.Short(), "reads", len(t.Reads), "cause", cause)
}

// Run reports until ctx is done. What then waits is dropped.
func (r *Reporter) Run(ctx context.Context) {
	for {
		select {
		case t := <-r.queue:
			if sleep(ctx, time.Until(t.at)); ctx.Err() == nil {
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
			r.log.Debug("a trace is reported", "tree", t.Tree.Short(), "reads", len(t.Reads))
			return
		case ctx.Err() != nil:
			return
		case try == tries-1, errors.Is(err, ErrRefused):
			r.drop(t, err)
			return
		}
		sleep(ctx, r.pause[try]+byChance(r.pause[try]))
	}
}

// wait waits until nobody on this node waits for the link, but not for ever.
func (r *Reporter) wait(ctx context.Context) {
	for end := time.Now().Add(politeness); r.busy() && ctx.Err() == nil && time.Now().Before(end); {
		sleep(ctx, politeStep)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// ReportStats are a reporter's figures since it was made.
type ReportStats struct {
	Reported int64 `json:"reported"`
	Dropped  int64 `json:"dropped"`
	Waiting  int   `json:"waiting"`
}

// Stats returns the figures.
func (r *Reporter) Stats() ReportStats {
	return ReportStats{Reported: r.reported.Load(), Dropped: r.dropped.Load(), Waiting: len(r.queue)}
}
