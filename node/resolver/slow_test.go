package resolver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/sleep"
	"lighter/store/origin"
	"lighter/wire"
)

// A pull waits for a slow hub while the hub sends something, but not longer than the bounds in
// budget.go.
func TestSlowHub(t *testing.T) {
	answerAfter := func(d time.Duration) func(context.Context, string) (*wire.Chain, error) {
		return func(ctx context.Context, chain string) (*wire.Chain, error) {
			if !sleep.For(ctx, d) {
				return nil, context.Cause(ctx)
			}
			return stack(1)(ctx, chain)
		}
	}
	for _, c := range []struct {
		name          string
		lookup, index time.Duration // how long the lookup and the index take
		heard         time.Duration // how long before the lookup's answer the hub last sent something
		sends         time.Duration // how often the hub sends something before the index
		lazy          bool
		waits         time.Duration // how long the claim takes
	}{
		{"the answer is slow", 15 * time.Second, 0, 0, 0, true, 15 * time.Second},
		{"the answer takes too long", time.Minute, 0, 0, 0, false, lookupTimeout},
		{"the index is silent", 0, 4 * time.Second, time.Hour, 0, false, silenceTimeout},
		{"the index is silent after the answer", 0, time.Minute, 0, 0, false, 10 * time.Second},
		{"the index is silent some time after the answer", 0, time.Minute, 7 * time.Second, 0, false, 3 * time.Second},
		{"the index trickles", 0, 50 * time.Second, 0, time.Second, true, 50 * time.Second},
		{"the index trickles for ever", 0, time.Hour, 0, time.Second, false, beginTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{answer: answerAfter(c.lookup)}
				r, trees := newResolver(t, h)
				trees.fetch = func(ctx context.Context, _ chunk.ID, begun func()) error {
					h.hear(time.Now().Add(-c.heard))
					for left := c.index; left > 0; left -= time.Second {
						if !sleep.For(ctx, time.Second) {
							return context.Cause(ctx)
						}
						if c.sends > 0 {
							h.send()
						}
					}
					begun()
					return nil
				}
				begin := time.Now()
				err := claimErr(t, r, 0)
				lazy := err == nil
				if lazy != c.lazy || time.Since(begin) != c.waits {
					t.Errorf("lazy %v after %s (%v), want %v after %s", lazy, time.Since(begin), err, c.lazy, c.waits)
				}
				if lazy != (r.Unanswered() == 0) {
					t.Errorf("lazy %v, and %d pulls went on without the hub", lazy, r.Unanswered())
				}
				time.Sleep(2 * answerTTL)
			})
		})
	}
}

// If a hub says when to retry, it is asked again at that time, unless that is too late.
func TestBusyHub(t *testing.T) {
	for after, lazy := range map[time.Duration]bool{2 * time.Second: true, time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			busy := &origin.Unavailable{Err: errors.New("too many requests"), After: after}
			asked, fetched := 0, 0
			h := &fakeHub{answer: func(ctx context.Context, chain string) (*wire.Chain, error) {
				if asked++; asked < 3 {
					return nil, busy
				}
				return stack(0)(ctx, chain)
			}}
			r, trees := newResolver(t, h)
			trees.fetch = func(context.Context, chunk.ID, func()) error {
				if fetched++; fetched < 3 {
					return busy
				}
				return nil
			}
			begin := time.Now()
			err := claimErr(t, r, 0)
			got := err == nil
			if took := time.Since(begin); got != lazy || lazy && (took < 4*after || asked != 3 || fetched != 3) ||
				!lazy && (took != 0 || asked != 1) {
				t.Errorf("Retry-After %s: lazy %v after %s, %d lookups, %d fetches, error %v; want lazy %v",
					after, got, took, asked, fetched, err, lazy)
			}
			time.Sleep(2 * answerTTL)
		})
	}
}

// A retry that the hub has requested does not extend the time that the hub has.
func TestBusyAndSlowHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(0)}
		r, trees := newResolver(t, h)
		asked := 0
		trees.fetch = func(ctx context.Context, _ chunk.ID, _ func()) error {
			if asked++; asked == 1 {
				return &origin.Unavailable{Err: errors.New("too many requests"), After: 20 * time.Second}
			}
			for sleep.For(ctx, time.Second) {
				h.send()
			}
			return context.Cause(ctx)
		}
		begin := time.Now()
		err := claimErr(t, r, 0)
		if took := time.Since(begin); err == nil || took != beginTimeout || asked != 2 {
			t.Errorf("error %v after %s, %d fetches; want an error after %s, and 2", err, took, asked, beginTimeout)
		}
		time.Sleep(2 * answerTTL)
	})
}

// If the download of an index is cut off, it is requested again, maxAttempts times in all, because
// its pull has claimed chains already.
func TestIndexThatIsCutOff(t *testing.T) {
	for cut, lazy := range map[int]bool{1: true, maxAttempts - 1: true, maxAttempts: false} {
		synctest.Test(t, func(t *testing.T) {
			r, trees := newResolver(t, &fakeHub{answer: stack(1)})
			fetched := 0
			trees.fetch = func(_ context.Context, _ chunk.ID, begun func()) error {
				begun()
				if fetched++; fetched <= cut {
					time.Sleep(time.Second)
					return &origin.Unavailable{Err: errors.New("it was cut off")}
				}
				return nil
			}
			if !claim(t, r, 0) {
				t.Error("the chain below is not claimed although the index has begun")
			}
			err := claimErr(t, r, 1)
			if (err == nil) != lazy || !lazy && !strings.Contains(err.Error(), "cut off") ||
				fetched != min(cut+1, maxAttempts) {
				t.Errorf("cut off %d times: error %v, fetched %d times; want lazy %v", cut, err, fetched, lazy)
			}
			time.Sleep(2 * answerTTL)
		})
	}
	synctest.Test(t, func(t *testing.T) { // an invalid index is not requested again
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		fetched := 0
		trees.fetch = func(_ context.Context, _ chunk.ID, begun func()) error {
			fetched++
			begun()
			return &chunk.InvalidError{What: "index", Err: errors.New("damaged")}
		}
		if claim(t, r, 0) || fetched != 1 {
			t.Errorf("an invalid index: claimed, or fetched %d times, want once", fetched)
		}
		time.Sleep(2 * answerTTL)
	})
}
