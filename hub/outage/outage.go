// Package outage watches the stores that a hub needs: its database and its bucket. It knows which
// of them are away, since when and why, for probes and metrics.
//
// It also bounds what the log says about an outage. The log has a line when a store goes away, one
// a minute while it is away, and one when it is back. All other lines about errors of stores
// (package away) have the level debug meanwhile. They are counted: these lines say how many.
//
// Hazard: a state is some seconds old. A store that fails a few requests, and answers Ping, is not
// away. Then the log has about one line a second about its errors, and one a minute that counts the
// others.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/hub/away"
	"lighter/hub/report"
)

const (
	every      = 10 * time.Second // between two checks of stores that answer
	everyAway  = 2 * time.Second  // between two checks while a store is away
	least      = time.Second      // between two checks that errors have caused
	timeout    = 10 * time.Second // of Ping
	remindEach = time.Minute      // while a store is away
)

// Store is a store of the hub.
type Store struct {
	Name string
	Ping func(ctx context.Context) error // fails if the store is away
}

// State is what is known about a store.
type State struct {
	Store string
	Err   error     // nil: the store answers
	Since time.Time // when Err came or went
}

// Watch watches stores. It is safe for concurrent use.
type Watch struct {
	log    *slog.Logger
	stores []Store
	check  chan struct{} // has an element if a check is due now

	mu         sync.Mutex // guards the following
	states     []State
	checking   bool  // an error was logged, and no check has ended since
	suppressed int64 // lines that the log lacks, since the last line that says so
	reminded   time.Time
}

// New returns a watch of stores, which count as present before the first check.
func New(log *slog.Logger, stores ...Store) *Watch {
	w := &Watch{log: log, stores: stores, check: make(chan struct{}, 1)}
	for _, s := range stores {
		w.states = append(w.states, State{Store: s.Name, Since: time.Now()})
	}
	return w
}

// States returns the states of all stores.
func (w *Watch) States() []State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]State(nil), w.states...)
}

// Run checks the stores until ctx ends: at intervals, and soon after an error of a store was
// logged.
func (w *Watch) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.check:
		case <-ctx.Done():
			return ctx.Err()
		}
		next := every
		if w.checkAll(ctx) {
			next = everyAway
		}
		select { // a flood of errors causes no flood of checks
		case <-time.After(least):
		case <-ctx.Done():
			return ctx.Err()
		}
		timer.Reset(next - least)
	}
}

// checkAll checks all stores at the same time, and reports whether one is away.
func (w *Watch) checkAll(ctx context.Context) (isAway bool) {
	errs := make([]error, len(w.stores))
	var group errgroup.Group
	for i, s := range w.stores {
		group.Go(func() error {
			try, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			errs[i] = s.Ping(try)
			return nil
		})
	}
	_ = group.Wait() // errs has the errors
	if ctx.Err() != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checking = false
	now := time.Now()
	for i, err := range errs {
		isAway = isAway || err != nil
		w.note(&w.states[i], err, now)
	}
	if now.Sub(w.reminded) < remindEach {
		return isAway
	}
	if !isAway && w.suppressed > 0 {
		w.log.Warn("the stores of the hub answer, and some requests to them fail", "lines", w.taken(now))
	}
	if isAway {
		for _, s := range w.states {
			if s.Err != nil {
				w.log.Warn("a store of the hub is still away", "store", s.Store,
					"duration", now.Sub(s.Since).Round(time.Second), "err", report.Logged(s.Err), "lines", w.taken(now))
			}
		}
	}
	return isAway
}

// note notes the result of a check of a store. w.mu is held.
func (w *Watch) note(s *State, err error, now time.Time) {
	was := *s
	s.Err = err
	if (err == nil) == (was.Err == nil) {
		return
	}
	s.Since = now
	if err != nil {
		w.log.Error("a store of the hub is away", "store", s.Store, "err", report.Logged(err))
		w.reminded = now
		return
	}
	w.log.Info("a store of the hub is back", "store", s.Store, "duration", now.Sub(was.Since).Round(time.Second),
		"lines", w.taken(now))
}

// taken returns the number of lines that the log lacks since the last call. w.mu is held.
func (w *Watch) taken(now time.Time) int64 {
	n := w.suppressed
	w.suppressed, w.reminded = 0, now
	return n
}

// Logger returns the log for all parts of the hub.
func (w *Watch) Logger() *slog.Logger { return slog.New(&handler{w.log.Handler(), w}) }

// suppresses reports whether the log lacks a line about an error of a store. The first such line is
// logged, and causes a check. Further ones are not logged before the check has ended, nor while a
// store is away.
func (w *Watch) suppresses() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	isAway := w.checking
	for _, s := range w.states {
		isAway = isAway || s.Err != nil
	}
	if isAway {
		w.suppressed++
		return true
	}
	w.checking = true
	select {
	case w.check <- struct{}{}:
	default: // a check is due
	}
	return false
}

// handler is a handler of a log's lines that gives lines about errors of stores the level debug.
type handler struct {
	slog.Handler
	watch *Watch
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && isAbout(r) && h.watch.suppresses() {
		r.Level = slog.LevelDebug
		if !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// isAbout reports whether a line is about an error of a store.
func isAbout(r slog.Record) (found bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		found = ok && away.Is(err)
		return !found
	})
	return found
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.watch}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.watch}
}
