package resolver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"

	"lighter/store/origin"
)

// fetch is the fetch of one tree's index, shared by all pulls that wait for it. It runs in the
// background: once it has a slot it ends only when the index is cached or has failed.
type fetch struct {
	resolver  *Resolver
	tree      chunk.ID
	abandoned chan struct{} // closed when the last waiter was cancelled before the fetch had a slot
	begun     chan struct{} // closed when the index is arriving
	done      chan struct{} // closed when err is set
	err       error

	// Resolver.mu guards what follows.
	waiters int  // that were not cancelled
	hasSlot bool // it goes on even if all waiters are cancelled
}

// fetch starts or joins the fetch of a chain's tree. The caller waits for it. Who starts it sets its
// patience. The fetch holds the chain while it runs and for answerTTL after that: its pull claims
// this chain last.
func (r *Resolver) fetch(s *index.Statement, p patience) *fetch {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.fetches[s.Tree]
	if f == nil {
		f = &fetch{resolver: r, tree: s.Tree,
			abandoned: make(chan struct{}), begun: make(chan struct{}), done: make(chan struct{})}
		r.fetches[s.Tree] = f
		go f.run(s, p)
	}
	f.waiters++
	return f
}

// ensure keeps a statement and waits for its tree.
func (r *Resolver) ensure(ctx context.Context, s *index.Statement, p patience) error {
	if err := r.keep(s); err != nil {
		return err
	}
	return r.fetch(s, p).wait(ctx)
}

var errAbandoned = errors.New("the fetch was cancelled while it waited for a slot")

func (f *fetch) run(s *index.Statement, p patience) {
	r := f.resolver
	r.Hold(s.Chain)
	err := f.runInSlot(s, p)
	r.dropLater(s.Chain) // each waiter has its own hold
	r.mu.Lock()
	defer r.mu.Unlock()
	f.err = err
	if r.fetches[s.Tree] == f {
		delete(r.fetches, s.Tree)
	}
	close(f.done)
}

// runInSlot waits for a slot and fetches the tree. If it fails, pulls go on without the hub for a
// while. So does a brief fetch that has waited for its slot meanwhile.
func (f *fetch) runInSlot(s *index.Statement, p patience) error {
	r := f.resolver
	release, ok := r.slots.acquire(f.abandoned)
	if !ok {
		return errAbandoned
	}
	defer release()
	if !f.takeSlot() {
		return errAbandoned
	}
	// The hub's time begins now.
	if err := r.keep(s); err != nil {
		if !errors.Is(err, errOtherTree) {
			r.pause(err)
		}
		return err
	}
	if p == brief {
		if err := r.memory.paused(); err != nil {
			return err
		}
	}
	err := f.download(p)
	if err != nil {
		r.pause(err)
	}
	return err
}

// takeSlot reports whether a waiter is left now that the fetch has a slot.
func (f *fetch) takeSlot() bool {
	f.resolver.mu.Lock()
	defer f.resolver.mu.Unlock()
	f.hasSlot = f.waiters > 0
	return f.hasSlot
}

// leave removes a cancelled waiter. Without a slot, the last one ends the fetch, and later pulls
// start a new one.
func (f *fetch) leave() {
	r := f.resolver
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.waiters--; f.waiters == 0 && !f.hasSlot {
		delete(r.fetches, f.tree)
		close(f.abandoned)
	}
}

// download fetches the index. It tries again if the hubs say when, and if the index was cut off: a
// pull may have claimed chains because it had begun.
func (f *fetch) download(p patience) error {
	ctx, cancel := context.WithTimeout(context.Background(), indexTimeout)
	defer cancel()
	timeout := indexTimeout
	if p == brief {
		timeout = beginTimeout
	}
	end := time.Now().Add(timeout)
	var began atomic.Bool // in this attempt
	first := sync.OnceFunc(func() { close(f.begun) })
	attempts := 1
	try := func() error {
		began.Store(false)
		return f.attempt(ctx, p, end, func() { began.Store(true); first() })
	}
	return retry(ctx, try, func(err error) (time.Duration, bool) {
		if wait, ok := retryAfter(err); ok && time.Now().Add(wait).Before(end) {
			return wait, true
		}
		if !began.Load() || attempts == maxAttempts || !errors.As(err, new(*origin.Unavailable)) {
			return 0, false
		}
		attempts++
		end = time.Now().Add(cutOffPause + timeout)
		return cutOffPause, true
	})
}

// attempt has the tree fetched once. A brief attempt waits for the beginning of the index until end
// at most, and less long for a silent hub.
func (f *fetch) attempt(ctx context.Context, p patience, end time.Time, begun func()) error {
	r := f.resolver
	if p == full {
		return r.trees.Ensure(ctx, f.tree, begun)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stop := origin.Watch(r.lastReceived, silenceTimeout, time.Until(end), func(why error) {
		giveUp(fmt.Errorf("its index did not come: %w", why))
	})
	defer stop()
	return r.trees.Ensure(ctx, f.tree, func() { stop(); begun() })
}

// wait waits until the tree is cached.
func (f *fetch) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		f.leave()
		return context.Cause(ctx)
	}
}

// waitBegun waits until the index is arriving, or the tree is cached.
func (f *fetch) waitBegun(ctx context.Context) error {
	select {
	case <-f.begun:
	case <-f.done:
	case <-ctx.Done():
		f.leave()
		return context.Cause(ctx)
	}
	select {
	case <-f.done: // it may have failed right after it began
		return f.err
	default:
		return nil
	}
}
