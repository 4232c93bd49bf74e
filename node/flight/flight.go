// Package flight promises that callers that want the same thing share one call for it, which is
// cancelled when the last of them has stopped waiting. It is golang.org/x/sync/singleflight with
// cancellation, and with a report that a result has begun to arrive.
package flight

import (
	"context"
	"errors"
	"sync"
)

// ErrNoWaiter is the cause with which a call is cancelled that nobody waits for.
var ErrNoWaiter = errors.New("nobody waits for it any more")

// Group runs at most one call for each key. The zero Group is ready for use, and safe for
// concurrent use.
type Group[K comparable] struct {
	mu    sync.Mutex // guards what follows, and waiters of each call
	calls map[K]*Call
}

// Call is a function that runs once for all its waiters.
type Call struct {
	leave   func() // removes a waiter
	begun   chan struct{}
	done    chan struct{} // closed when err is set
	err     error
	waiters int
}

// Join joins the running call for key, or runs run as a new one. The caller is one of its waiters
// until Wait or WaitBegun returns the cause of its context. run calls begun, once or several
// times, when its result begins to arrive. It may go on for a moment after its context was
// cancelled; the next Join does not wait for that.
func (g *Group[K]) Join(key K, run func(ctx context.Context, begun func()) error) *Call {
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
func (g *Group[K]) start(key K, run func(ctx context.Context, begun func()) error) *Call {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &Call{begun: make(chan struct{}), done: make(chan struct{})}
	c.leave = func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if c.waiters--; c.waiters == 0 {
			g.forget(key, c)
			cancel(ErrNoWaiter)
		}
	}
	if g.calls == nil {
		g.calls = map[K]*Call{}
	}
	g.calls[key] = c
	go func() {
		defer cancel(nil)
		c.err = run(ctx, sync.OnceFunc(func() { close(c.begun) }))
		g.mu.Lock()
		g.forget(key, c)
		g.mu.Unlock()
		close(c.done)
	}()
	return c
}

// forget makes the next Join start a new call; g.mu is held.
func (g *Group[K]) forget(key K, c *Call) {
	if g.calls[key] == c {
		delete(g.calls, key)
	}
}

// WaitBegun waits until the call's result begins to arrive, or the call ends without one: then it
// returns its error.
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
	case <-c.begun: // both
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
