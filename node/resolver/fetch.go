package resolver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/flight"
	"lighter/store/origin"
)

// fetch starts the fetch of a chain's tree, or joins the fetch that is in flight. It does not wait:
// the caller waits for the returned call. p has no effect on a fetch that is in flight already.
//
// A fetch runs in the background. It is abandoned if no caller waits for it any more before it has
// a slot. Once it has a slot, it ends only when the index is cached or has failed. The fetch holds
// the chain while it runs, and its tree stays for answerTTL after that. Otherwise the tree could be
// removed: a pull starts the fetch when it claims a lower chain, and holds the image's top chain
// only at the end of the pull.
func (r *Resolver) fetch(s *index.Statement, p patience) *flight.Call {
	return r.fetches.Join(s.Tree, func(ctx context.Context, c *flight.Call) error {
		r.Hold(s.Chain)
		defer r.dropLater(s.Chain) // this Hold is the fetch's own; callers have called Hold, too
		release, ok := r.slots.acquire(ctx.Done())
		if !ok {
			return errAbandoned
		}
		defer release()
		if !c.Keep() {
			return errAbandoned
		}
		return r.fetchInSlot(c, s, p)
	})
}

// ensure keeps a statement and waits for its tree.
func (r *Resolver) ensure(ctx context.Context, s *index.Statement, p patience) error {
	if err := r.keep(s); err != nil {
		return err
	}
	return r.fetch(s, p).Wait(ctx)
}

var errAbandoned = errors.New("the fetch was cancelled while it waited for a slot")

// fetchInSlot fetches a tree. If the hubs fail, brief pulls go on without them for a while: a brief
// fetch that gets its slot then fails at once.
func (r *Resolver) fetchInSlot(c *flight.Call, s *index.Statement, p patience) error {
	if err := r.keep(s); err != nil {
		return err
	}
	if p == brief {
		if err := r.answers.paused(); err != nil {
			return err
		}
	}
	err := r.download(s.Tree, p, c.Begin)
	if err != nil && !isLocal(err) {
		r.pause(err)
	}
	return err
}

// isLocal reports whether a fetch failed because of a file on this machine, and not because of the
// hubs.
func isLocal(err error) bool { return errors.As(err, new(*fs.PathError)) }

// download fetches the index. If the hubs name a time to retry (Retry-After), it tries again then.
// It also tries again if the download was cut off, because a pull may have claimed chains when the
// index began to arrive.
func (r *Resolver) download(tree chunk.ID, p patience, begun func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), indexTimeout)
	defer cancel()
	timeout := indexTimeout
	if p == brief {
		timeout = beginTimeout
	}
	end := time.Now().Add(timeout)
	var began atomic.Bool // whether the index began to arrive in this attempt
	attempts := 1
	try := func() error {
		began.Store(false)
		return r.attempt(ctx, tree, p, end, func() { began.Store(true); begun() })
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

// attempt tries once to fetch the tree. A brief attempt waits until end for the index to begin to
// arrive. It gives up earlier if the hubs are silent (silenceTimeout).
func (r *Resolver) attempt(
	ctx context.Context, tree chunk.ID, p patience, end time.Time, begun func(),
) error {
	if p == full {
		return r.config.Trees.Ensure(ctx, tree, begun)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stop := origin.Watch(r.config.LastReceived, silenceTimeout, time.Until(end), func(why error) {
		giveUp(fmt.Errorf("the index did not arrive: %w", why))
	})
	defer stop()
	return r.config.Trees.Ensure(ctx, tree, func() { stop(); begun() })
}

// waitBegun waits until a tree's index begins to arrive, or the tree is cached.
func waitBegun(ctx context.Context, c *flight.Call) error {
	if err := c.WaitBegun(ctx); err != nil {
		return err
	}
	return c.Err() // the fetch may have failed right after the index began to arrive
}
