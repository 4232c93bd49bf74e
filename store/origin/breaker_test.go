package origin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/wire/client"
)

// fakes are origins with scripted answers.
type fakes struct {
	*Failover
	mu     sync.Mutex // guards what follows
	asked  []int
	answer []error
	takes  time.Duration
}

// script sets the answers of all requests from now on, one per origin.
func (f *fakes) script(takes time.Duration, answer ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes, f.answer, f.asked = takes, answer, make([]int, len(answer))
}

func newFakes(t *testing.T, answer ...error) *fakes {
	t.Helper()
	f := &fakes{answer: answer, asked: make([]int, len(answer))}
	var urls []string
	for i := range answer {
		urls = append(urls, fmt.Sprint("http://127.0.0.1:", i+1))
	}
	f.Failover = over(t, urls...)
	return f
}

func (f *fakes) call(t *testing.T, e effort) error {
	t.Helper()
	return f.try(t.Context(), e, func(_ context.Context, o *origin, _ int) error {
		for i := range f.all {
			if f.all[i] == o {
				f.mu.Lock()
				f.asked[i]++
				takes, answer := f.takes, f.answer[i]
				f.mu.Unlock()
				time.Sleep(takes)
				return answer
			}
		}
		return nil
	})
}

var (
	errBroken = errors.New("connection refused")
	errGone   = fmt.Errorf("unit: %w", chunk.ErrNotFound)
	errLie    = &chunk.InvalidError{What: "unit", Err: errors.New("html")}
	errForbid = &client.Error{Status: http.StatusForbidden, Message: "no"}
)

// A success takes precedence over a failure, and a failure over a missing object. An object is
// missing only if no origin failed.
func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		answers               []error
		unavailable, notFound bool
		up                    int
	}{
		{[]error{errGone, nil}, false, false, 2},
		{[]error{errLie, errGone, nil}, false, false, 2},
		{[]error{errGone, errGone}, false, true, 2},
		{[]error{errForbid, errGone}, false, true, 2},
		{[]error{errBroken, errGone}, true, false, 1},
		{[]error{errGone, errBroken}, true, false, 1},
		{[]error{errBroken, errBroken}, true, false, 0},
		{[]error{errLie, errBroken}, true, false, 0},
		{[]error{errLie, errGone}, false, false, 1},
		{[]error{errForbid, errForbid}, false, false, 2},
	} {
		f := newFakes(t, c.answers...)
		err := f.call(t, thorough)
		var down *Unavailable
		succeeds := c.answers[len(c.answers)-1] == nil
		if errors.As(err, &down) != c.unavailable || errors.Is(err, chunk.ErrNotFound) != c.notFound ||
			(err == nil) != succeeds {
			t.Errorf("%v: got %v, want success %t, unavailable %t, not found %t",
				c.answers, err, succeeds, c.unavailable, c.notFound)
		}
		said := errors.Join(c.answers...)
		missed := errors.Is(said, chunk.ErrNotFound) || errors.As(said, new(*chunk.InvalidError))
		if down != nil && down.Missed() != missed {
			t.Errorf("%v: got missed %v, want %v", c.answers, down.Missed(), missed)
		}
		up := 0
		for _, h := range f.Health() {
			if h.Up {
				up++
			}
		}
		if up != c.up {
			t.Errorf("%v: %d origins are up, want %d", c.answers, up, c.up)
		}
	}
}

// An origin that fails is passed over, probed by one request after growing pauses, and preferred
// again once it answers.
func TestProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken, nil)
		last, longest := time.Now(), time.Duration(0)
		for n := 0; n < 600_000; n += 100 { // ten minutes
			before := f.asked[0]
			if err := f.call(t, thorough); err != nil {
				t.Fatal(err)
			}
			if f.asked[0] > before {
				longest, last = max(longest, time.Since(last)), time.Now()
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := f.asked[0]; n < 10 || n > 60 || f.asked[1] != 6000 {
			t.Errorf("requests: %d, want 10 to 60 of the first origin and 6000 of the second", f.asked)
		}
		if longest > maxPause+time.Second || longest < maxPause/2 {
			t.Errorf("the longest pause was %s, want up to %s", longest, maxPause)
		}
		// It answers slowly: one request probes it, and the others do not wait.
		f.script(time.Second, nil, nil)
		time.Sleep(maxPause)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := f.call(t, thorough); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if f.asked[0] != 1 || f.asked[1] != 9 {
			t.Errorf("requests during the probe: %d, want 1 and 9", f.asked)
		}
		if err := f.call(t, thorough); err != nil || f.asked[0] != 2 || !f.Health()[0].Up {
			t.Errorf("requests after the probe: %d, %v, want 2 of the first origin", f.asked, err)
		}
	})
}

// If no origin is up, a reader's request is sent, but a pull's request is not.
func TestAllAreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken, errBroken)
		for range 5 {
			if err := f.call(t, quick); !errors.As(err, new(*Unavailable)) || !errors.Is(err, errBroken) {
				t.Errorf("got %v, want an Unavailable with the cause", err)
			}
		}
		if f.asked[0] != 1 || f.asked[1] != 1 {
			t.Errorf("requests of a pull: %d, want one each", f.asked)
		}
		f.answer[1] = nil
		if err := f.call(t, thorough); err != nil || f.asked[0] != 2 || f.asked[1] != 2 {
			t.Errorf("requests after a reader: %d, %v, want 2 each", f.asked, err)
		}
		if err := f.call(t, quick); err != nil || f.asked[0] != 2 {
			t.Errorf("requests of a pull with one origin up: %d, %v, want 2 of the first", f.asked, err)
		}
		// The origin that is up fails, and the other works again without having been probed.
		f.script(0, nil, errBroken)
		if err := f.call(t, quick); err != nil || f.asked[0] != 1 || f.asked[1] != 1 {
			t.Errorf("requests of a pull with the other origin working: %d, %v, want one each", f.asked, err)
		}
	})
}

// An origin stays up if it fails to give one object but gives others, if the caller cancelled the
// request, and if the caller could not store the answer.
func TestOriginStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken)
		f.script(2*time.Second, errBroken)
		go f.call(t, thorough)
		time.Sleep(time.Second)
		f.script(0, nil)
		if err := f.call(t, thorough); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if h := f.Health()[0]; !h.Up || h.Failures != 1 {
			t.Errorf("after one failure that is about the object: got %+v, want an origin that is up", h)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		err := f.try(ctx, thorough, func(context.Context, *origin, int) error { cancel(why); return errBroken })
		if h := f.Health()[0]; !h.Up || !errors.Is(err, why) {
			t.Errorf("after a cancelled request: got %+v, %v; want an origin that is up, and the cause", h, err)
		}
		full := errors.New("no space left on device")
		err = f.try(t.Context(), thorough, func(context.Context, *origin, int) error { return callerError{full} })
		if h := f.Health()[0]; !h.Up || !errors.Is(err, full) {
			t.Errorf("after an error of the caller: got %+v, %v; want an origin that is up, and that error", h, err)
		}
	})
}

// stuckLog is a log handler that blocks until it is freed.
type stuckLog struct {
	slog.Handler
	waits, freed chan struct{}
}

func (s stuckLog) Handle(context.Context, slog.Record) error {
	s.waits <- struct{}{}
	<-s.freed
	return nil
}

// While a log line is being written, other callers can see and ask the origin.
func TestLogHoldsNobodyUp(t *testing.T) {
	f := newFakes(t, errBroken)
	log := stuckLog{slog.New(slog.DiscardHandler).Handler(), make(chan struct{}), make(chan struct{})}
	f.all[0].log = slog.New(enabled{log})
	var all sync.WaitGroup
	ask := func() { all.Go(func() { _ = f.call(t, thorough) }) }
	for _, answer := range []error{errBroken, nil} { // it goes down and up again
		f.script(0, answer)
		ask()
		<-log.waits
		done := make(chan struct{})
		go func() {
			defer close(done)
			if up := f.Health()[0].Up; up != (answer == nil) {
				t.Errorf("after the answer %v: got up %v, want %v", answer, up, answer == nil)
			}
			_ = f.call(t, thorough)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Error("other callers wait for the log")
		}
		log.freed <- struct{}{}
		<-done
	}
	all.Wait()
}

// enabled enables all levels.
type enabled struct{ slog.Handler }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }
