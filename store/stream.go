package store

import (
	"context"
	"time"

	"lighter/format/chunk"
)

// Stream starts a background request for the chunk's unit, of about size bytes. It is for units
// that are fetched one after the other. If the unit has no request yet, Stream waits until the link
// has room. It returns when the request counts as in flight; the gate may still delay it. wait is
// nil if the chunk is cached. Otherwise the caller has to call it: it waits until the unit is
// stored or dropped. It returns the encoded bytes of the answer, or 0 if Stream has joined a
// request of another caller.
//
// The link has room while less than its window is in flight. After startup, while a reader of this
// share waits for a request that was sent for it, the window is only the bandwidth-delay product,
// so that no queue delays the answer. While the queue is drained, the window is half of that
// product.
//
// Shares without a streamed unit, in flight or not stored yet, go first, one after the other. Such
// a share may start one request as soon as the requests of streams alone leave room, even if its
// readers wait. After maxIdleWait it may do so even if the link is full.
//
// No request starts while the unit's server fails, or while more than maxStreamUnstored bytes wait
// to be stored.
func (s *Share) Stream(ctx context.Context, ref chunk.Ref, size int64) (
	wait func(context.Context) (int64, error), err error) {
	fetcher := s.fetcher
	w := wanted{key: fetcher.keyOf(ref), ref: ref, share: s, size: size}
	w.route = fetcher.routeTo(w.key)
	if !fetcher.flights.has(w.key) {
		fetcher.assume(w.route)
		waiter := &waiter{}
		defer w.route.link.leave(waiter)
		if err := s.awaitRoom(ctx, w.route, waiter); err != nil {
			return nil, err
		}
	}
	f, started := fetcher.flights.join(w)
	if f == nil {
		return nil, nil
	}
	if started {
		f.route.link.addStream(&f.transfer)
	}
	s.streams.Add(1)
	fetcher.gate.want(s, &f.ticket, false)
	return func(ctx context.Context) (int64, error) {
		defer fetcher.wake()
		defer s.streams.Add(-1)
		defer fetcher.flights.leave(f)
		select {
		case <-f.stored:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if f.err != nil || !started {
			return 0, f.err
		}
		return f.received, nil
	}, nil
}

// awaitRoom returns when the share may start a background request on a route.
func (s *Share) awaitRoom(ctx context.Context, to *route, w *waiter) error {
	for {
		changed := to.link.changed()
		wait := to.backoff.left()
		if wait <= 0 {
			var now bool
			if now, wait = s.hasRoom(to, w); now {
				return nil
			}
		}
		again := make(<-chan time.Time)
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hasRoom reports whether the share may start a background request now. If not, wait is the time
// after which to ask again even without a change of the link; 0: only after a change.
func (s *Share) hasRoom(to *route, w *waiter) (now bool, wait time.Duration) {
	fetcher := s.fetcher
	if fetcher.storage.unstored.Load() > maxStreamUnstored {
		return false, 0
	}
	if s.streams.Load() == 0 {
		return to.link.hasRoomForIdle(w)
	}
	return to.link.hasRoom(fetcher.gate.hasFault(s)), 0
}
