// Package flight shares one call between callers that want the same result. The call is cancelled
// when the last caller has stopped waiting. golang.org/x/sync/singleflight has no cancellation, and
// its callers cannot wait until a result begins to arrive.
package flight

import (
	"context"
	"errors"
	"sync"
)

// ErrNoWaiter is the cause with which a call without waiters is cancelled.
var ErrNoWaiter = errors.New("no caller waits for the result any more")

// Group runs at most one call for each key. The zero Group is ready for use. A Group is safe for
// concurrent use.
type Group[K comparable] struct {
	mu    sync.Mutex // guards calls, and the fields waiters and kept of each call
	calls map[K]*Call
}

// Call is a function that runs once for all its waiters.
type Call struct {
	mu     *sync.Mutex // the group's
	forget func()      // makes the next Join start a new call; mu is held
	cancel context.CancelCauseFunc
	once   sync.Once // closes begun
	begun  chan struct{}
	done   chan struct{} // closed when err is set
	err    error

	waiters int  // number of callers that wait
	kept    bool // whether the call goes on without waiters
}

// Join joins the running call for key, or starts a new call that runs run. The caller counts as a
// waiter of the call until Wait or WaitBegun fails because the caller's context is done. run may
// continue for a moment after its context was cancelled. The next Join does not wait for the end of
// run, but starts a new call.
func (g *Group[K]) Join(key K, run func(ctx context.Context, c *Call) error) *Call {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.calls[key]
	if c == nil {
		c = g.start(key, run)
	}
	c.waiters++
	return c
}

// start starts a new call; g.mu is held.
func (g *Group[K]) start(key K, run func(ctx context.Context, c *Call) error) *Call {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &Call{mu: &g.mu, cancel: cancel, begun: make(chan struct{}), done: make(chan struct{})}
	c.forget = func() {
		if g.calls[key] == c {
			delete(g.calls, key)
		}
	}
	if g.calls == nil {
		g.calls = map[K]*Call{}
	}
	g.calls[key] = c
	go func() {
		defer cancel(nil)
		c.err = run(ctx, c)
		g.mu.Lock()
		c.forget()
		g.mu.Unlock()
		close(c.done)
	}()
	return c
}

// Begin is called by run when the result begins to arrive. It may be called several times.
func (c *Call) Begin() { c.once.Do(func() { close(c.begun) }) }

// Keep is called by run. From then on, the call is not cancelled when its last waiter stops
// waiting. Keep returns false if no caller waits any more: then the call is cancelled already.
func (c *Call) Keep() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = c.waiters > 0
	return c.kept
}

// leave removes a waiter.
func (c *Call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiters--; c.waiters == 0 && !c.kept {
		c.forget()
		c.cancel(ErrNoWaiter)
	}
}

// WaitBegun waits until the call's result begins to arrive. If the call ends before, it returns the
// call's error.
func (c *Call) WaitBegun(ctx context.Context) error {
	select {
	case <-c.begun:
		return nil
	case <-c.done:
	case <-ctx.Done():
		c.leave()
		return context.Cause(ctx)
	}
	select {
	case <-c.begun: // the result had begun to arrive before the call ended
		return nil
	default:
		return c.err
	}
}

// Wait waits until the call ends, and returns its error.
func (c *Call) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		c.leave()
		return context.Cause(ctx)
	}
}

// Err returns the call's error if it has ended with one, else nil.
func (c *Call) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}
