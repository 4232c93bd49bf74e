package store

import (
	"context"
	"slices"
	"sync"

	"lighter/format/pack"
)

// gate decides when flights are admitted, that is, when they may send their requests. A flight
// waits in the queue of each share that wants it, and is admitted for the first of them that has
// room. Shares take turns. A flight is urgent if a reader waits for it. Urgent flights go first,
// and background flights get the room that urgent flights leave. The limits of all shares together
// do not hold back a share's first alwaysPerShare urgent flights. So requests that hang in one
// share do not block another share.
//
// The round robin is written here, not shared with node/fuse and node/prefetch: a flight waits in
// the queues of several shares at once, and urgent flights overtake others.
//
// It is safe for concurrent use; the zero value is ready to use.
type gate struct {
	faultEnded func() // called when a flight that hasFault counted has ended; may be nil

	mu      sync.Mutex // guards all that follows, tickets, and the gate's part of shares
	running counts
	queues  []*Share      // the shares with waiting flights, each once; the first one has the next turn
	freed   chan struct{} // closed when there may be room for bytes; nil if no flight waits for room
}

// counts has the numbers of admitted flights, and the encoded bytes of the answers that they are
// receiving.
type counts struct {
	urgent, background int
	bytes              int64
}

func (c counts) flights() int { return c.urgent + c.background }

// ticket is a flight's place in the gate.
type ticket struct {
	admitted chan struct{} // closed when the flight is admitted

	// The gate's mu guards what follows.
	shares  []*Share // the shares that want the flight; while it waits, it is in the queue of each
	share   *Share   // the share whose limits include the flight while it runs
	faults  []*Share // the shares whose readers asked for it before it was admitted
	urgent  bool     // a reader waits for it
	running bool
	ended   bool
	bytes   int64 // encoded bytes of the answer that is being received; 0: none yet
}

func newTicket() ticket { return ticket{admitted: make(chan struct{})} }

// wrap makes flights wait for their turn, and their answers for room.
func (g *gate) wrap(next step) step {
	return func(ctx context.Context, f *flight, take func(Answer) error) error {
		if err := g.enter(ctx, &f.ticket); err != nil {
			return err
		}
		defer g.leave(&f.ticket)
		return next(ctx, f, func(a Answer) error {
			bytes := a.Length
			if bytes < 0 {
				bytes = pack.MaxStored
			}
			if err := g.grow(ctx, &f.ticket, min(bytes, pack.MaxStored)); err != nil {
				return err
			}
			return take(a)
		})
	}
}

// want notes that a share wants the flight, and whether a reader waits for it. A flight is not
// admitted before a share wants it.
func (g *gate) want(s *Share, t *ticket, urgent bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.ended {
		return
	}
	if urgent && !t.running && !slices.Contains(t.faults, s) {
		t.faults = append(t.faults, s)
		s.faults++
	}
	known := slices.Contains(t.shares, s)
	if known && (t.urgent || !urgent) {
		return
	}
	if !known {
		t.shares = append(t.shares, s)
		if !t.running {
			g.queue(s, t)
		}
	}
	if urgent && !t.urgent {
		g.count(t, -1)
		t.urgent = true
		g.count(t, 1)
	}
	if t.running {
		g.wake() // there may be room for its bytes now
	}
	g.admit()
}

func (g *gate) queue(s *Share, t *ticket) {
	if len(s.waiting) == 0 {
		g.queues = append(g.queues, s)
	}
	s.waiting = append(s.waiting, t)
}

// GateStats are the requests in flight and those that wait for their turn. A request is urgent if a
// reader waits for it.
type GateStats struct {
	Urgent            int   `json:"urgent"`
	Background        int   `json:"background"`
	UrgentWaiting     int   `json:"urgentWaiting"`
	BackgroundWaiting int   `json:"backgroundWaiting"`
	Bytes             int64 `json:"bytes"` // encoded bytes of the answers that are being received
}

func (g *gate) stats() GateStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := GateStats{Urgent: g.running.urgent, Background: g.running.background, Bytes: g.running.bytes}
	for _, s := range g.queues {
		for _, t := range s.waiting {
			switch {
			case t.shares[0] != s: // it is counted for shares[0]
			case t.urgent:
				st.UrgentWaiting++
			default:
				st.BackgroundWaiting++
			}
		}
	}
	return st
}

// enter returns when the flight is admitted, which needs a call of want, or when ctx is done.
func (g *gate) enter(ctx context.Context, t *ticket) error {
	select {
	case <-t.admitted:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.running {
		g.end(t)
	} else {
		t.ended = true
		g.endFaults(t)
		g.dequeue(t)
	}
	return context.Cause(ctx)
}

// hasFault reports whether a flight has not ended that a reader of the share asked for before it
// was admitted. The flight counts until it ends, even if that reader has left.
func (g *gate) hasFault(s *Share) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.faults > 0
}

// endFaults removes the flight from the numbers that hasFault checks.
func (g *gate) endFaults(t *ticket) {
	if len(t.faults) == 0 {
		return
	}
	for _, s := range t.faults {
		s.faults--
	}
	t.faults = nil
	if g.faultEnded != nil {
		g.faultEnded()
	}
}

// leave ends an admitted flight.
func (g *gate) leave(t *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(t)
}

// count adds n to the running flights of the flight's kind, if it runs.
func (g *gate) count(t *ticket, n int) {
	if !t.running {
		return
	}
	for _, c := range []*counts{&g.running, &t.share.running} {
		if t.urgent {
			c.urgent += n
		} else {
			c.background += n
		}
	}
}

func (g *gate) end(t *ticket) {
	g.count(t, -1)
	t.running, t.ended = false, true
	g.endFaults(t)
	g.free(t)
	g.admit()
}

// admit admits all flights for which there is room, one of each share in turn, urgent ones first.
// If urgent flights still wait afterwards, there is no room for them in their share, or in all
// shares together. Then there is no room for background flights there either. Background flights of
// other shares may be admitted: they delay no urgent flight that only its own share's limit holds
// back.
func (g *gate) admit() {
	for g.admitOne(true) {
	}
	for g.admitOne(false) {
	}
}

func (g *gate) admitOne(urgent bool) bool {
	for range g.queues {
		s := g.queues[0]
		g.queues = append(g.queues[1:], s)
		if t := s.next(urgent); t != nil && g.allow(s, urgent) {
			g.dequeue(t)
			t.running, t.share = true, s
			g.count(t, 1)
			close(t.admitted)
			return true
		}
	}
	return false
}

// next returns the share's first waiting ticket that is urgent, or that is not; nil if there is
// none.
func (s *Share) next(urgent bool) *ticket {
	for _, t := range s.waiting {
		if t.urgent == urgent {
			return t
		}
	}
	return nil
}

func (g *gate) allow(s *Share, urgent bool) bool {
	if urgent && s.running.urgent < alwaysPerShare {
		return true
	}
	if !urgent && (g.running.background >= maxBackground || s.running.background >= maxBackgroundPerShare) {
		return false
	}
	return g.running.flights() < maxFlights && s.running.flights() < maxPerShare
}

// dequeue removes a ticket from its queues.
func (g *gate) dequeue(t *ticket) {
	for _, s := range t.shares {
		s.waiting = slices.DeleteFunc(s.waiting, func(other *ticket) bool { return other == t })
		if len(s.waiting) == 0 {
			g.queues = slices.DeleteFunc(g.queues, func(other *Share) bool { return other == s })
		}
	}
}

// grow returns when there is room for n bytes of an admitted flight, or ctx is done. First it frees
// the bytes that the flight has so far.
func (g *gate) grow(ctx context.Context, t *ticket, n int64) error {
	for {
		freed := g.tryGrow(t, n)
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryGrow returns nil if there was room. Otherwise it returns a channel that is closed when there
// may be room.
func (g *gate) tryGrow(t *ticket, n int64) (freed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free(t)
	limit := int64(maxBytes)
	if !t.urgent {
		limit /= 2
	}
	if g.running.bytes+n > limit && !g.moveToIdle(t) {
		if g.freed == nil {
			g.freed = make(chan struct{})
		}
		return g.freed
	}
	t.bytes = n
	g.running.bytes += n
	t.share.running.bytes += n
	return nil
}

// moveToIdle moves a flight to the limits of a share that wants it and is receiving nothing. It
// reports whether there is such a share.
func (g *gate) moveToIdle(t *ticket) bool {
	for _, s := range t.shares {
		if s.running.bytes == 0 {
			g.count(t, -1)
			t.share = s
			g.count(t, 1)
			return true
		}
	}
	return false
}

func (g *gate) free(t *ticket) {
	if t.bytes == 0 {
		return
	}
	g.running.bytes -= t.bytes
	t.share.running.bytes -= t.bytes
	t.bytes = 0
	g.wake()
}

// wake makes flights that wait for bytes check again.
func (g *gate) wake() {
	if g.freed != nil {
		close(g.freed)
		g.freed = nil
	}
}
