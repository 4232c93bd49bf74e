package store

import (
	"context"
	"time"

	"lighter/format/chunk"
)

// maxStreamUnstored is how many bytes, plain, may have arrived and not be stored when
// Stream asks for more: far fewer than are not stored at all.
const maxStreamUnstored = maxUnstored / 4

// Stream asks for the chunk's unit, of about size bytes, as one of many that are
// wanted one after the other and for which nobody waits. It waits for its turn and
// returns when the unit is on its way; wait, which has to be called, then waits until
// it is in the cache, and tells how many bytes came for this call alone (encoded). wait
// is nil if nothing had to be asked for.
//
// Its turn is when the link has room: as much is asked for as keeps it busy, and while
// a reader of the share waits for something that was not on its way so little that his
// answer meets no queue. For a while after the source has failed nothing begins. A
// share for which nothing is on its way may begin one unit whatever readers wait for,
// and after some seconds however full the link is of others' streams.
func (s *Share) Stream(ctx context.Context, ref chunk.Ref, size int64) (wait func(context.Context) (int64, error), err error) {
	u, key := s.units, s.units.keyOf(ref)
	if !u.isOnItsWay(key) {
		if e, ok := u.source.(Estimator); ok {
			u.link.suppose(e.Estimate())
		}
		w := &waiter{}
		defer u.link.leave(w)
		if err := s.awaitTurn(ctx, w); err != nil {
			return nil, err
		}
	}
	f, started := u.joinSized(s, key, ref, size)
	if f == nil {
		return nil, nil
	}
	if started {
		u.link.pace(&f.crossing)
	}
	s.streams.Add(1)
	u.gate.want(s, &f.place, false)
	return func(ctx context.Context) (int64, error) {
		defer u.link.wake()
		defer s.streams.Add(-1)
		defer u.leave(f)
		select {
		case <-f.stored:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if f.err != nil || !started {
			return 0, f.err
		}
		return f.bytes, nil
	}, nil
}

func (s *Share) awaitTurn(ctx context.Context, w *waiter) error {
	u := s.units
	for {
		changed := u.link.changed()
		in := time.Until(time.Unix(0, u.rests.Load()))
		if in <= 0 {
			var now bool
			if now, in = s.turn(w); now {
				return nil
			}
		}
		again := make(<-chan time.Time)
		if in > 0 {
			again = time.After(in)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// turn is the link's, for this share.
func (s *Share) turn(w *waiter) (now bool, in time.Duration) {
	u := s.units
	if u.unstored.Load() > maxStreamUnstored {
		return false, 0
	}
	if s.streams.Load() == 0 {
		return u.link.firstTurn(w)
	}
	return u.link.turn(u.gate.hasFault(s))
}

// Reach returns how many bytes come from the source in the time that a first byte
// takes, if that is long; 0: it is not, or not known.
func (s *Share) Reach() int64 { return s.units.link.reach() }
