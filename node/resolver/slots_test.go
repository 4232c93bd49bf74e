package resolver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// At most maxFetches indexes are fetched at a time. The time in which a fetch waits for its slot
// does not count towards silenceTimeout.
func TestFetchesWaitForSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		var now, most int
		var mu sync.Mutex // guards both
		trees.fetch = func(ctx context.Context, _ chunk.ID, begun func()) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(silenceTimeout / 2)
			begun()
			time.Sleep(silenceTimeout)
			mu.Lock()
			now--
			mu.Unlock()
			return context.Cause(ctx)
		}
		const all = 5 * maxFetches
		for n := range all {
			go func() {
				if err := r.fetch(statement(n), brief).Wait(t.Context()); err != nil {
					t.Errorf("fetch %d: %v", n, err)
				}
			}()
		}
		time.Sleep(5*(silenceTimeout+silenceTimeout/2) + 1)
		synctest.Wait()
		cached, _ := trees.List() // never fails
		mu.Lock()
		defer mu.Unlock()
		if most != maxFetches || now != 0 || len(cached) != all {
			t.Errorf("%d at a time at most, %d in flight, %d cached; want %d, 0, %d",
				most, now, len(cached), maxFetches, all)
		}
		time.Sleep(2 * answerTTL) // until all delayed drops are done
	})
}

// If the hub fails the first indexes, the fetches that wait for slots fail at once, and do not wait
// for the hub.
func TestSlotsBehindAFailingHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		trees.fetch = func(ctx context.Context, _ chunk.ID, _ func()) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		start := time.Now() // the clock of the bubble
		for n := range 10 * maxFetches {
			go func() {
				err := r.fetch(statement(n), brief).Wait(t.Context())
				if err == nil || errors.Is(err, context.Canceled) || time.Since(start) > silenceTimeout {
					t.Errorf("fetch %d: error %v after %s, want one of the hub within %s",
						n, err, time.Since(start), silenceTimeout)
				}
			}()
		}
		synctest.Wait()
		time.Sleep(2 * answerTTL)
	})
}

// trickle makes the indexes of the first slow trees begin and never end, and all other indexes
// arrive at once.
func trickle(trees *fakeTrees, slow int) {
	ids := map[chunk.ID]bool{}
	for n := range slow {
		ids[treeID(n)] = true
	}
	trees.fetch = func(ctx context.Context, id chunk.ID, begun func()) error {
		begun()
		if !ids[id] {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

// Each group of maxFetches slow indexes delays others by slotTime at most, until maxLate indexes
// are late.
func TestSlowIndexesDelayNoOther(t *testing.T) {
	for slow, waits := range map[int]time.Duration{
		1: 0, maxFetches - 1: 0, maxFetches: slotTime, 2 * maxFetches: 2 * slotTime,
		maxFetches + maxLate - 1: maxLate / maxFetches * slotTime,
		maxFetches + maxLate:     indexTimeout, // until the first slow index fails
	} {
		synctest.Test(t, func(t *testing.T) {
			r, trees := newResolver(t, &fakeHub{})
			trickle(trees, slow)
			for n := range slow {
				go func() { _ = r.fetch(statement(n), full).Wait(t.Context()) }()
			}
			synctest.Wait()
			begin := time.Now() // the clock of the bubble
			if err := r.fetch(statement(slow), full).Wait(t.Context()); err != nil || time.Since(begin) > waits {
				t.Errorf("behind %d slow indexes: arrived after %s, error %v; want %s at most",
					slow, time.Since(begin), err, waits)
			}
			time.Sleep(2*indexTimeout + 2*answerTTL)
		})
	}
}

// If a caller is cancelled while its fetch waits for a slot, the caller returns at once. Other
// callers of the same fetch get the index. An index for which no caller waits is not fetched.
func TestCancelledBeforeItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		proceed := make(chan struct{})
		trees.fetch = func(_ context.Context, id chunk.ID, begun func()) error {
			begun()
			<-proceed
			return nil
		}
		fetch := func(ctx context.Context, n int) <-chan error {
			done := make(chan error, 1)
			go func() { done <- r.fetch(statement(n), full).Wait(ctx) }()
			synctest.Wait()
			return done
		}
		for n := range maxFetches {
			fetch(t.Context(), n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		shared, alone := maxFetches, maxFetches+1
		gone := []<-chan error{fetch(ctx, shared), fetch(ctx, alone)}
		waits := fetch(t.Context(), shared)
		cancel()
		for _, done := range gone {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled caller: error %v, want %v", err, context.Canceled)
			}
		}
		again := fetch(t.Context(), alone)
		dropped, cancel := context.WithCancel(t.Context())
		fetch(dropped, alone+1)
		cancel()
		synctest.Wait()
		close(proceed)
		for what, done := range map[string]<-chan error{"another waiter": waits, "requested again": again} {
			if err := <-done; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		synctest.Wait()
		if all := len(trees.takeCalls()); all != maxFetches+2 || trees.Has(treeID(alone+1)) || r.Unanswered() != 0 {
			t.Errorf("%d fetches, want %d; unanswered %d, want 0", all, maxFetches+2, r.Unanswered())
		}
		time.Sleep(2 * answerTTL)
	})
}
