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

// fakes are origins that answer as they are told.
type fakes struct {
	*Failover
	mu     sync.Mutex // guards what follows
	asked  []int
	answer []error
	takes  time.Duration
}

// from has all requests from now on answered so.
func (f *fakes) from(takes time.Duration, answer ...error) {
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

// What is there decides, then what may be; only what all do not have is not there.
func TestWhatCounts(t *testing.T) {
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
		if errors.As(err, &down) != c.unavailable || errors.Is(err, chunk.ErrNotFound) != c.notFound || (err == nil) != (c.answers[len(c.answers)-1] == nil) {
			t.Errorf("%v: %v", c.answers, err)
		}
		said := errors.Join(c.answers...)
		if down != nil && down.Missed() != (errors.Is(said, chunk.ErrNotFound) || errors.As(said, new(*chunk.InvalidError))) {
			t.Errorf("%v: missed %v", c.answers, down.Missed())
		}
		up := 0
		for _, h := range f.Health() {
			if h.Up {
				up++
			}
		}
		if up != c.up {
			t.Errorf("%v: %d are up, want %d", c.answers, up, c.up)
		}
	}
}

// The first is passed over while it fails, asked by one at a time after pauses
// that grow, and used again by all once it answers.
func TestTheFirstIsUsedAgain(t *testing.T) {
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
			t.Errorf("asked %d times", f.asked)
		}
		if longest > maxPause+time.Second || longest < maxPause/2 {
			t.Errorf("the longest pause was %s", longest)
		}
		// It answers slowly: one finds out, the others do not wait for it.
		f.from(time.Second, nil, nil)
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
			t.Errorf("while one finds out: %d", f.asked)
		}
		if err := f.call(t, thorough); err != nil || f.asked[0] != 2 || !f.Health()[0].Up {
			t.Errorf("once it is back: %d, %v", f.asked, err)
		}
	})
}

// Where none is up, a reader's request is made anyway, and a pull's is not.
func TestAllAreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken, errBroken)
		for range 5 {
			if err := f.call(t, quick); !errors.As(err, new(*Unavailable)) || !errors.Is(err, errBroken) {
				t.Errorf("%v", err)
			}
		}
		if f.asked[0] != 1 || f.asked[1] != 1 {
			t.Errorf("a pull asked %d times", f.asked)
		}
		f.answer[1] = nil
		if err := f.call(t, thorough); err != nil || f.asked[0] != 2 || f.asked[1] != 2 {
			t.Errorf("a reader: %d, %v", f.asked, err)
		}
		if err := f.call(t, quick); err != nil || f.asked[0] != 2 {
			t.Errorf("a pull once one is back: %d, %v", f.asked, err)
		}
		// The one that is up goes, and the other one is back, which nobody knows yet.
		f.from(0, nil, errBroken)
		if err := f.call(t, quick); err != nil || f.asked[0] != 1 || f.asked[1] != 1 {
			t.Errorf("a pull when the other one is back: %d, %v", f.asked, err)
		}
	})
}

// One object that cannot be had from an origin which gives others says nothing
// about the origin; nor do those who do not wait for an answer.
func TestOneObjectIsNotTheOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t, errBroken)
		f.from(2*time.Second, errBroken)
		go f.call(t, thorough)
		time.Sleep(time.Second)
		f.from(0, nil)
		if err := f.call(t, thorough); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if h := f.Health()[0]; !h.Up || h.Failures != 1 {
			t.Errorf("%+v", h)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		err := f.try(ctx, thorough, func(context.Context, *origin, int) error { cancel(why); return errBroken })
		if h := f.Health()[0]; !h.Up || !errors.Is(err, why) {
			t.Errorf("%+v, %v", h, err)
		}
		full := errors.New("no space left on device")
		err = f.try(t.Context(), thorough, func(context.Context, *origin, int) error { return callerError{full} })
		if h := f.Health()[0]; !h.Up || !errors.Is(err, full) {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// stuckLog is a log whose lines nobody takes until it is freed.
type stuckLog struct {
	slog.Handler
	waits, freed chan struct{}
}

func (s stuckLog) Handle(context.Context, slog.Record) error {
	s.waits <- struct{}{}
	<-s.freed
	return nil
}

// While a line of the log is written, others see an origin and ask it.
func TestLogHoldsNobodyUp(t *testing.T) {
	f := newFakes(t, errBroken)
	log := stuckLog{slog.New(slog.DiscardHandler).Handler(), make(chan struct{}), make(chan struct{})}
	f.all[0].log = slog.New(enabled{log})
	var all sync.WaitGroup
	ask := func() { all.Go(func() { _ = f.call(t, thorough) }) }
	for _, answer := range []error{errBroken, nil} { // it goes down, and comes back
		f.from(0, answer)
		ask()
		<-log.waits
		done := make(chan struct{})
		go func() {
			defer close(done)
			if up := f.Health()[0].Up; up != (answer == nil) {
				t.Errorf("up %v after %v", up, answer)
			}
			_ = f.call(t, thorough)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Error("others wait for the log")
		}
		log.freed <- struct{}{}
		<-done
	}
	all.Wait()
}

// enabled has every line be of interest.
type enabled struct{ slog.Handler }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }
