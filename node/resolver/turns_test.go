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

// trickling has some trees' indexes come for as long as they are let, and the others at once.
func trickling(trees *fakeTrees, slow int) {
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

// Slow indexes hold up no other: they pass their turns on, up to the bound of those that arrive at
// all.
func TestSlowIndexesDelayNoOther(t *testing.T) {
	for slow, waits := range map[int]time.Duration{
		1: 0, maxFetches - 1: 0, maxFetches: turnTime, 2 * maxFetches: 2 * turnTime,
		maxFetches + maxLate - 1: maxLate / maxFetches * turnTime,
		maxFetches + maxLate:     fetchTimeout, // which ends those that began first
	} {
		synctest.Test(t, func(t *testing.T) {
			r, trees := newResolver(t, &fakeHub{})
			trickling(trees, slow)
			for n := range slow {
				go func() { _ = r.fetch(statement(n), true).wait(t.Context()) }()
			}
			synctest.Wait()
			begin := time.Now() // by the clock of the test
			if err := r.fetch(statement(slow), true).wait(t.Context()); err != nil || time.Since(begin) > waits {
				t.Errorf("behind %d slow indexes one has come after %s, want %s: %v", slow, time.Since(begin), waits, err)
			}
			time.Sleep(2*fetchTimeout + 2*memory)
		})
	}
}

// A caller that is cancelled while it waits for its turn waits no more, and fails nobody who waits
// for the same index. One that nobody waits for is not fetched.
func TestCancelledBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, trees := newResolver(t, &fakeHub{})
		let := make(chan struct{})
		trees.fetch = func(_ context.Context, id chunk.ID, begun func()) error {
			begun()
			<-let
			return nil
		}
		fetch := func(ctx context.Context, n int) <-chan error {
			done := make(chan error, 1)
			go func() { done <- r.fetch(statement(n), true).wait(ctx) }()
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
				t.Errorf("cancelled: %v", err)
			}
		}
		again := fetch(t.Context(), alone)
		dropped, cancel := context.WithCancel(t.Context())
		fetch(dropped, alone+1)
		cancel()
		synctest.Wait()
		close(let)
		for what, done := range map[string]<-chan error{"not wanted by all": waits, "wanted again": again} {
			if err := <-done; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		synctest.Wait()
		if all := len(trees.said()); all != maxFetches+2 || trees.Has(treeID(alone+1)) || r.Unanswered() != 0 {
			t.Errorf("%d were fetched, want %d; %d times pulls went on without the hub", all, maxFetches+2, r.Unanswered())
		}
		time.Sleep(2 * memory)
	})
}
