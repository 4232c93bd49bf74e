package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// stuckSource is a Source whose units with N below stuck never arrive. It counts requests in
// flight.
type stuckSource struct {
	answer       []byte
	stuck        uint32
	running, max atomic.Int64
}

func (h *stuckSource) FetchUnit(ctx context.Context, u chunk.Unit, take func(Answer) error) error {
	if n := h.running.Add(1); n > h.max.Load() {
		h.max.Store(n)
	}
	defer h.running.Add(-1)
	if u.N < h.stuck {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return take(unitAnswer(h.answer, ""))
}

func (h *stuckSource) Fetch(context.Context, chunk.Ref, func(Answer) error) error {
	return chunk.ErrNotFound
}

// at returns a reference to the chunk in the nth unit.
func at(ref chunk.Ref, n int) chunk.Ref {
	ref.Unit.N = uint32(n)
	return ref
}

// Requests that hang in other shares never delay a share's readers. If they hang in only one share,
// they do not delay background requests either. The number of requests in flight is bounded.
func TestStuckSharesDoNotDelayOthers(t *testing.T) {
	for name, shares := range map[string]int{"one": 1, "many": 40} {
		t.Run(name, func(t *testing.T) {
			const each = 150
			unit, refs := encode(t, "one")
			synctest.Test(t, func(t *testing.T) {
				src := &stuckSource{answer: unit, stuck: uint32(shares * each)}
				u := NewFetcher(src, noCache{})
				ctx, cancel := context.WithCancel(t.Context())
				for i := range shares {
					s := u.Share()
					for k := range each {
						ref := at(refs[0], i*each+k)
						go s.Prefetch(ctx, ref)
						if k >= each/2 {
							go s.Read(ctx, ref, 0, make([]byte, 3), nil)
						}
					}
				}
				synctest.Wait()
				st := u.Stats().InFlight
				sum := st.Urgent + st.Background + st.UrgentWaiting + st.BackgroundWaiting
				if int64(st.Urgent+st.Background) != src.running.Load() ||
					sum != shares*each || st.UrgentWaiting+st.Urgent != shares*each/2 {
					t.Errorf("got %d requests in flight, %+v; want the same number, and %d in all, half urgent",
						src.running.Load(), st, shares*each)
				}
				// All shares together have up to maxFlights, and each share alwaysPerShare more,
				// but no share more than maxPerShare.
				if n, most := src.running.Load(), int64(max(maxPerShare, min(shares*maxPerShare,
					maxFlights+shares*alwaysPerShare))); n > most || n < alwaysPerShare {
					t.Errorf("got %d requests in flight, want %d to %d", n, alwaysPerShare, most)
				}
				other := u.Share()
				for n := range 3 * maxFlights {
					if err := other.Read(t.Context(), at(refs[0], shares*each+n), 0, make([]byte, 3), nil); err != nil {
						t.Fatal(err)
					}
				}
				if shares == 1 {
					if err := other.Prefetch(t.Context(), at(refs[0], shares*each)); err != nil {
						t.Error(err)
					}
				}
				cancel()
				u.Wait()
				if u.gate.running != (counts{}) || len(u.gate.queues) != 0 {
					t.Errorf("in the end: got %+v, %d queues, want none", u.gate.running, len(u.gate.queues))
				}
			})
		})
	}
}

// admitted returns how many of the flights are admitted.
func admitted(flights []*flight) (n int) {
	for _, f := range flights {
		select {
		case <-f.ticket.admitted:
			n++
		default:
		}
	}
	return n
}

// Urgent flights are admitted before background flights, also a flight that becomes urgent while it
// waits.
func TestReadersGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		full := make([]ticket, maxFlights)
		shares := make([]*Share, maxFlights)
		for i := range full {
			shares[i] = &Share{}
			full[i] = newTicket()
			g.want(shares[i], &full[i], true)
			if err := g.enter(t.Context(), &full[i]); err != nil {
				t.Fatal(err)
			}
		}
		s := &Share{running: counts{urgent: alwaysPerShare}}
		waiting := make([]*flight, 3)
		for i := range waiting {
			waiting[i] = &flight{ticket: newTicket()}
			g.want(s, &waiting[i].ticket, false)
			go g.enter(t.Context(), &waiting[i].ticket)
			synctest.Wait()
		}
		g.want(s, &waiting[1].ticket, true)
		for i, want := range []int{1, 2, 0} {
			if i == 1 {
				g.want(s, &waiting[2].ticket, true)
			}
			g.leave(&full[i])
			synctest.Wait()
			if n := admitted(waiting); n != i+1 || admitted(waiting[want:want+1]) != 1 {
				t.Errorf("after %d flights left: got %d admitted, want %d, and flight %d among them", i+1, n, i+1, want)
			}
		}
	})
}

// The bytes being received are bounded, except for one answer of each share. All flights get a
// turn.
func TestBytesInFlight(t *testing.T) {
	for _, urgent := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var g gate
			var done sync.WaitGroup
			limit := int64(maxBytes)
			if !urgent {
				limit /= 2
			}
			fly := func(s *Share) {
				p := newTicket()
				g.want(s, &p, urgent)
				if err := g.enter(t.Context(), &p); err != nil {
					t.Error(err)
				}
				if err := g.grow(t.Context(), &p, pack.MaxStored); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				g.leave(&p)
			}
			one, two := &Share{}, &Share{}
			for range 3 * maxBytes / pack.MaxStored {
				done.Go(func() { fly(one) })
			}
			synctest.Wait()
			if n := g.running.bytes; n > limit || n < limit-pack.MaxStored {
				t.Errorf("urgent %v: got %d bytes being received, want hardly less than %d", urgent, n, limit)
			}
			start := time.Now()
			fly(two)
			if time.Since(start) != time.Second {
				t.Errorf("urgent %v: another share waited %s, want no wait", urgent, time.Since(start)-time.Second)
			}
			done.Wait()
			if g.running != (counts{}) || one.running != (counts{}) {
				t.Errorf("in the end: got %+v, %+v, want none", g.running, one.running)
			}
		})
	}
}

// A unit that two shares want is admitted as soon as one of them has room. Here the share that
// asked first is full of requests that hang.
func TestWantedByTwoShares(t *testing.T) {
	const stuck = 2 * maxPerShare
	unit, refs := encode(t, "one")
	for _, ahead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			u := NewFetcher(&stuckSource{answer: unit, stuck: stuck}, noCache{})
			ctx, cancel := context.WithCancel(t.Context())
			defer u.Wait()
			defer cancel()
			one, other := u.Share(), u.Share()
			for n := range stuck + 1 { // the last one would arrive
				go one.Read(ctx, at(refs[0], n), 0, make([]byte, 3), nil)
				synctest.Wait()
			}
			if st := u.Stats().InFlight; st != (GateStats{Urgent: maxPerShare,
				UrgentWaiting: stuck + 1 - maxPerShare}) {
				t.Errorf("got %+v, want maxPerShare urgent requests running and the others waiting", st)
			}
			mine, done := context.WithTimeout(ctx, time.Second)
			defer done()
			ask := func() error { return other.Read(mine, at(refs[0], stuck), 0, make([]byte, 3), nil) }
			if ahead {
				ask = func() error { return other.Prefetch(mine, at(refs[0], stuck)) }
			}
			if err := ask(); err != nil {
				t.Errorf("ahead %v: got %v, want no error", ahead, err)
			}
			if n := u.gate.running.flights(); n != maxPerShare || other.running != (counts{}) ||
				len(other.waiting) != 0 {
				t.Errorf("ahead %v: got %d running, %+v of the other share; want %d and none",
					ahead, n, other.running, maxPerShare)
			}
		})
	}
}

// Two shares want one flight. If its bytes do not fit, they count for the share that receives
// nothing. The flight then need not wait.
func TestBytesOfTwoShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		one, other := &Share{}, &Share{}
		begin := func() *ticket {
			p := newTicket()
			g.want(one, &p, true)
			if err := g.enter(t.Context(), &p); err != nil {
				t.Error(err)
			}
			return &p
		}
		full, p := begin(), begin()
		arrived := make(chan error, 1)
		if err := g.grow(t.Context(), full, maxBytes); err != nil {
			t.Fatal(err)
		}
		go func() { arrived <- g.grow(t.Context(), p, 1) }()
		synctest.Wait()
		if len(arrived) > 0 {
			t.Error("grow beyond maxBytes: got room, want none")
		}
		g.want(other, p, true)
		synctest.Wait()
		if len(arrived) == 0 || other.running != (counts{urgent: 1, bytes: 1}) ||
			one.running != (counts{urgent: 1, bytes: maxBytes}) {
			t.Errorf("got one %+v, other %+v; want maxBytes and 1 byte", one.running, other.running)
		}
		g.leave(full)
		g.leave(p)
		if g.running != (counts{}) || one.running != (counts{}) || other.running != (counts{}) {
			t.Errorf("in the end: got %+v, %+v, %+v, want none", g.running, one.running, other.running)
		}
		g.want(one, p, true)
		if len(one.waiting) > 0 {
			t.Error("a flight that has ended waits")
		}
	})
}

// A flight that readers of two shares wait for counts as a fault of both shares until it ends. It
// does not count for a share whose reader came after the flight was admitted, nor for a share that
// only fetches ahead.
func TestFaultOfTwoShares(t *testing.T) {
	var ended int
	g := gate{faultEnded: func() { ended++ }}
	full := counts{urgent: maxPerShare}
	one, other, ahead, late := &Share{running: full}, &Share{running: full}, &Share{running: full}, &Share{}
	check := func(when string, want ...bool) {
		t.Helper()
		for i, s := range []*Share{one, other, ahead, late} {
			if got := g.hasFault(s); got != want[i] {
				t.Errorf("%s: share %d: got %v, want %v", when, i, got, want[i])
			}
		}
	}
	for _, admitted := range []bool{true, false} {
		p := newTicket()
		g.want(ahead, &p, false)
		for range 2 {
			g.want(one, &p, true)
			g.want(other, &p, true)
		}
		check("while it waits", true, true, false, false)
		if admitted {
			g.want(late, &p, false) // has room
			g.want(late, &p, true)
			check("when it is admitted", true, true, false, false)
		}
		ended = 0
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if admitted {
			g.leave(&p)
		} else if err := g.enter(ctx, &p); err == nil {
			t.Error("a flight without room was admitted")
		}
		check("in the end", false, false, false, false)
		if ended != 1 {
			t.Errorf("got %d calls of faultEnded, want 1", ended)
		}
	}
}
