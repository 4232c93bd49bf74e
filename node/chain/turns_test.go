package chain

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// However many indexes are wanted, few arrive at a time; who waits for a turn does
// not lose the time that the hub has.
func TestFetchesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		var now, most int
		var mu sync.Mutex // guards both
		trees.fetch = func(ctx context.Context, _ chunk.ID, begun func()) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(beginTimeout / 2)
			begun()
			time.Sleep(beginTimeout)
			mu.Lock()
			now--
			mu.Unlock()
			return context.Cause(ctx)
		}
		const all = 5 * maxFetches
		for n := range all {
			go func() {
				if err := r.fetch(statement(n), false).wait(t.Context()); err != nil {
					t.Errorf("fetch %d: %v", n, err)
				}
			}()
		}
		time.Sleep(5*(beginTimeout+beginTimeout/2) + 1)
		synctest.Wait()
		here, _ := trees.List() // never fails
		mu.Lock()
		defer mu.Unlock()
		if most != maxFetches || now != 0 || len(here) != all {
			t.Errorf("%d at a time at most, want %d; %d still arrive, %d are here", most, maxFetches, now, len(here))
		}
		time.Sleep(2 * memory) // until nothing is to be dropped later
	})
}

// Those who wait while the hub fails the others do not wait for it as well.
func TestTurnsBehindAHubThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		trees.fetch = func(ctx context.Context, _ chunk.ID, _ func()) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		start := time.Now() // by the clock of the test
		for n := range 10 * maxFetches {
			go func() {
				err := r.fetch(statement(n), false).wait(t.Context())
				if err == nil || errors.Is(err, context.Canceled) || time.Since(start) > beginTimeout {
					t.Errorf("fetch %d ends after %s: %v", n, time.Since(start), err)
				}
			}()
		}
		synctest.Wait()
		time.Sleep(2 * memory)
	})
}
