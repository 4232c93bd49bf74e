package resolver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/store/hub"
	"lighter/wire"
)

// A hub that is slow is waited for as long as something comes of it, within bounds:
// unpacking the image would take the same link longer.
func TestSlowHub(t *testing.T) {
	answerAfter := func(d time.Duration) func(context.Context, string) (*wire.Chain, error) {
		return func(ctx context.Context, chain string) (*wire.Chain, error) {
			if !sleep(ctx, d) {
				return nil, context.Cause(ctx)
			}
			return stack(1)(ctx, chain)
		}
	}
	for _, c := range []struct {
		name          string
		lookup, index time.Duration // take so long
		hears         time.Duration // while the index does not come, something does that often
		lazy          bool
		waits         time.Duration
	}{
		{"the look-up is slow", 15 * time.Second, 0, 0, true, 15 * time.Second},
		{"the look-up takes too long", time.Minute, 0, 0, false, lookupTimeout},
		{"the index is silent", 0, 4 * time.Second, 0, false, beginTimeout},
		{"the index trickles", 0, 50 * time.Second, time.Second, true, 50 * time.Second},
		{"the index trickles for ever", 0, time.Hour, time.Second, false, beginLongest},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHub{answer: answerAfter(c.lookup)}
				r, trees := newResolver(t, h)
				trees.fetch = func(ctx context.Context, _ chunk.ID, begun func()) error {
					for left := c.index; left > 0; left -= time.Second {
						if !sleep(ctx, time.Second) {
							return context.Cause(ctx)
						}
						if c.hears > 0 {
							h.hear()
						}
					}
					begun()
					return nil
				}
				begin := time.Now()
				lazy, why := claimWhy(t, r, 0)
				if lazy != c.lazy || time.Since(begin) != c.waits {
					t.Errorf("lazy %v after %s (%s), want %v after %s", lazy, time.Since(begin), why, c.lazy, c.waits)
				}
				if lazy != (r.Unanswered() == 0) {
					t.Errorf("%d times a pull went on without the hub", r.Unanswered())
				}
				time.Sleep(2 * memory)
			})
		})
	}
}

// A hub that says when to come back is asked again then, if that is soon.
func TestBusyHub(t *testing.T) {
	for after, lazy := range map[time.Duration]bool{2 * time.Second: true, time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			busy := &hub.Unavailable{Err: errors.New("too many requests"), After: after}
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
			got, why := claimWhy(t, r, 0)
			if took := time.Since(begin); got != lazy || lazy && (took < 4*after || asked != 3 || fetched != 3) || !lazy && (took != 0 || asked != 1) {
				t.Errorf("told to come back after %s: lazy %v after %s, asked %d and %d times: %s", after, got, took, asked, fetched, why)
			}
			time.Sleep(2 * memory)
		})
	}
}

// Being told to come back gives a hub no more time than it has in all.
func TestBusyAndSlowHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{answer: stack(0)}
		r, trees := newResolver(t, h)
		asked := 0
		trees.fetch = func(ctx context.Context, _ chunk.ID, _ func()) error {
			if asked++; asked == 1 {
				return &hub.Unavailable{Err: errors.New("too many requests"), After: 20 * time.Second}
			}
			for sleep(ctx, time.Second) {
				h.hear()
			}
			return context.Cause(ctx)
		}
		begin := time.Now()
		lazy, why := claimWhy(t, r, 0)
		if took := time.Since(begin); lazy || took != beginLongest || asked != 2 {
			t.Errorf("lazy %v after %s, asked %d times: %s", lazy, took, asked, why)
		}
		time.Sleep(2 * memory)
	})
}

// An index that was cut off is asked for again, as its pull cannot be plain any more; one
// that always is, a few times.
func TestIndexThatIsCutOff(t *testing.T) {
	for cut, lazy := range map[int]bool{1: true, maxAttempts - 1: true, maxAttempts: false} {
		synctest.Test(t, func(t *testing.T) {
			r, trees := newResolver(t, &fakeHub{answer: stack(1)})
			fetched := 0
			trees.fetch = func(_ context.Context, _ chunk.ID, begun func()) error {
				begun()
				if fetched++; fetched <= cut {
					time.Sleep(time.Second)
					return &hub.Unavailable{Err: errors.New("it was cut off")}
				}
				return nil
			}
			if !claim(t, r, 0) {
				t.Error("what is below is not claimed although the index comes")
			}
			if got, why := claimWhy(t, r, 1); got != lazy || !lazy && !strings.Contains(why, "cut off") || fetched != min(cut+1, maxAttempts) {
				t.Errorf("cut off %d times: lazy %v, fetched %d times: %s", cut, got, fetched, why)
			}
			time.Sleep(2 * memory)
		})
	}
	synctest.Test(t, func(t *testing.T) { // what is wrong is not asked for again
		r, trees := newResolver(t, &fakeHub{answer: stack(0)})
		fetched := 0
		trees.fetch = func(_ context.Context, _ chunk.ID, begun func()) error {
			fetched++
			begun()
			return &chunk.InvalidError{What: "index", Err: errors.New("damaged")}
		}
		if claim(t, r, 0) || fetched != 1 {
			t.Errorf("fetched %d times", fetched)
		}
		time.Sleep(2 * memory)
	})
}
