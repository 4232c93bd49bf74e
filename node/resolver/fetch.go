package resolver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/store/hub"
)

const (
	// beginTimeout is how long a pull that can still go on without a hub waits for the
	// beginning of the index, some 100 KB, if nothing came of the hub lately, and
	// beginLongest while something does.
	beginTimeout = 2 * time.Second
	beginLongest = time.Minute
	// fetchTimeout is what everything else has in all. When nothing arrives,
	// Ensure gives up long before.
	fetchTimeout = 5 * time.Minute
	// An index that was cut off is asked for maxAttempts times, again after againAfter.
	maxAttempts = 4
	againAfter  = time.Second
)

// fetch is a tree on its way here, for all who wait for it.
type fetch struct {
	resolver *Resolver
	tree     chunk.ID
	left     chan struct{} // closed when nobody waits for it any more before its turn came
	begun    chan struct{} // closed when the index is arriving
	done     chan struct{} // closed when err is set
	err      error

	// Resolver.mu guards what follows.
	waiters int  // that were not cancelled
	turn    bool // it had its turn: it goes on, whoever is cancelled
}

// fetch starts or joins the fetch of a chain's tree; the caller waits for it.
// committed says that the pull cannot go on without it, and waits for a silent hub as well; who
// joins lives with what the first said. It holds the chain while it lasts, and the tree stays for a
// while after that even if nobody holds it: the pull that it is for claims the chain
// last.
func (r *Resolver) fetch(s *index.Statement, committed bool) *fetch {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.fetches[s.Tree]
	if f == nil {
		f = &fetch{resolver: r, tree: s.Tree,
			left: make(chan struct{}), begun: make(chan struct{}), done: make(chan struct{})}
		r.fetches[s.Tree] = f
		go r.run(f, s, committed)
	}
	f.waiters++
	return f
}

// ensure keeps a statement and waits for its tree.
func (r *Resolver) ensure(ctx context.Context, s *index.Statement, committed bool) error {
	if err := r.keep(s); err != nil {
		return err
	}
	return r.fetch(s, committed).wait(ctx)
}

// errLeft is why a fetch ended that nobody waits for.
var errLeft = errors.New("nobody waits for the index any more")

func (r *Resolver) run(f *fetch, s *index.Statement, committed bool) {
	r.Hold(s.Chain)
	err := r.inTurn(f, s, committed)
	r.dropLater(s.Chain) // who waits has a hold
	r.mu.Lock()
	defer r.mu.Unlock()
	f.err = err
	if r.fetches[s.Tree] == f {
		delete(r.fetches, s.Tree)
	}
	close(f.done)
}

// inTurn brings the tree when it is the fetch's turn. If that was tried and failed, pulls go on
// without the hub for a while, also the one whose turn is next.
func (r *Resolver) inTurn(f *fetch, s *index.Statement, committed bool) error {
	end, ok := r.turns.take(f.left)
	if !ok {
		return errLeft
	}
	defer end()
	if !f.begin() {
		return errLeft
	}
	// The time that the hub has begins now.
	if err := r.keep(s); err != nil {
		if !errors.Is(err, errOtherTree) {
			r.fail(err)
		}
		return err
	}
	if !committed {
		if silence := r.silenceNow(); silence != nil {
			return silence
		}
	}
	err := r.bring(f, s, committed)
	if err != nil {
		r.fail(err)
	}
	return err
}

// begin tells whether somebody still waits when it is the fetch's turn.
func (f *fetch) begin() bool {
	f.resolver.mu.Lock()
	defer f.resolver.mu.Unlock()
	f.turn = f.waiters > 0
	return f.turn
}

// leave says that a waiter was cancelled. Before its turn the last one ends the fetch, which nobody
// joins from then on.
func (f *fetch) leave() {
	r := f.resolver
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.waiters--; f.waiters == 0 && !f.turn {
		delete(r.fetches, f.tree)
		close(f.left)
	}
}

// silenceNow says why a pull that can go on without a hub need not ask it now: it
// has failed others whose turn came before.
func (r *Resolver) silenceNow() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.silentTo) {
		return r.silence
	}
	return nil
}

// bring fetches the tree. Where the hubs want to be asked again they are, and where the
// index has begun to come and does not go on: its pull may be one that cannot go on
// without it.
func (r *Resolver) bring(f *fetch, s *index.Statement, committed bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	first := sync.OnceFunc(func() { close(f.begun) })
	for n := 1; ; n++ {
		var began atomic.Bool
		begun := func() { began.Store(true); first() }
		err := r.ensureOnce(ctx, s.Tree, committed, begun)
		if !began.Load() || n == maxAttempts || !errors.As(err, new(*hub.Unavailable)) || !sleep(ctx, againAfter) {
			return err
		}
	}
}

// ensureOnce has the tree fetched as long as a pull waits for the beginning of its index.
func (r *Resolver) ensureOnce(ctx context.Context, tree chunk.ID, committed bool, begun func()) error {
	if committed {
		return insist(ctx, fetchTimeout, func() error { return r.trees.Ensure(ctx, tree, begun) })
	}
	end := time.Now().Add(beginLongest)
	return insist(ctx, beginLongest, func() error {
		ctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		stop := hub.Watch(r.hub.Heard, beginTimeout, time.Until(end), func(why error) { giveUp(fmt.Errorf("its index did not come: %w", why)) })
		defer stop()
		return r.trees.Ensure(ctx, tree, func() { stop(); begun() })
	})
}

// insist calls try, and again when the hubs want to be asked again, if that is within
// the time longest.
func insist(ctx context.Context, longest time.Duration, try func() error) error {
	for end := time.Now().Add(longest); ; {
		err := try()
		var busy *hub.Unavailable
		if !errors.As(err, &busy) || busy.After == 0 {
			return err
		}
		after := busy.After + rand.N(busy.After/2+1) // nodes that were told the same do not come back together
		if time.Now().Add(after).After(end) || !sleep(ctx, after) {
			return err
		}
	}
}

// sleep tells whether so much time went by before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// wait waits until the tree is here.
func (f *fetch) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		f.leave()
		return context.Cause(ctx)
	}
}

// waitBegun waits until the tree is coming, or here.
func (f *fetch) waitBegun(ctx context.Context) error {
	select {
	case <-f.begun:
	case <-f.done:
	case <-ctx.Done():
		f.leave()
		return context.Cause(ctx)
	}
	select {
	case <-f.done: // the beginning may have been all
		return f.err
	default:
		return nil
	}
}
