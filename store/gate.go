package store

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// A flight begins when the gate lets it, and until then waits in the queue of
// each share that wants it, so that it begins with the first of them that may.
// Those that readers wait for come first; the background gets what they leave. The
// limits of all shares together do not hold back a share's first few: so whatever
// is stuck in others, a share gets on.
const (
	// maxFlights bounds the requests of all shares, maxPerShare those of one.
	maxFlights  = 128
	maxPerShare = 64
	// alwaysPerShare is how many requests that readers wait for a share may have
	// whatever the others do.
	alwaysPerShare = 4
	// maxBackground and maxBackgroundPerShare are how many of them may be for
	// nobody who waits.
	maxBackground         = 96
	maxBackgroundPerShare = 48
	// maxBytes bounds the encoded bytes that are arriving, of which the background
	// has half at most; a share may always have one unit.
	maxBytes = 64 << 20
)

// Share is one device's part of what Units may fetch at a time. It is safe for
// concurrent use.
type Share struct {
	units    *Units
	received map[string]int64 // by origin; guarded by Units.mu

	// The gate's mu guards what follows.
	inWork  counts
	waiting []*place // the first is next of its kind
	faults  int      // places that its readers wait for, and that were not in work when they came

	streams atomic.Int64 // units on their way that Stream has begun
}

// counts are flights in work, and their bytes.
type counts struct {
	urgent, background int
	bytes              int64
}

func (c counts) flights() int { return c.urgent + c.background }

// place is a flight's place in a gate.
type place struct {
	begins chan struct{} // closed when it may begin

	// The gate's mu guards what follows.
	shares []*Share // that want it; while it waits, it is in the queue of each
	share  *Share   // of whose part it is, while it is in work
	fault  *Share   // whose fault it is: a reader of it came before anybody else had asked
	urgent bool     // a reader waits for it
	inWork bool
	ended  bool
	bytes  int64
}

func newPlace() place { return place{begins: make(chan struct{})} }

// gate decides which flights begin. It is safe for concurrent use; the zero value
// is ready to use.
type gate struct {
	calm func() // called when a fault has ended; nil: nobody wants to know

	mu     sync.Mutex // guards all that follows, and the shares and places
	inWork counts
	queues []*Share      // with flights that wait, each once; the first is next
	freed  chan struct{} // closed when bytes are; nil if nobody waits for them
}

// want says that a share wants the flight, and whether for a reader who waits.
// With the first who does, the flight's turn can come.
func (g *gate) want(s *Share, p *place, urgent bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := slices.Contains(p.shares, s)
	if p.ended || known && (p.urgent || !urgent) {
		return
	}
	if !known {
		p.shares = append(p.shares, s)
		if !p.inWork {
			g.queue(s, p)
		}
	}
	if urgent && !p.urgent {
		if !p.inWork {
			p.fault = s
			s.faults++
		}
		g.makeUrgent(p)
	}
	if p.inWork {
		g.wake() // there may be room for it now
	}
	g.admit()
}

func (g *gate) queue(s *Share, p *place) {
	if len(s.waiting) == 0 {
		g.queues = append(g.queues, s)
	}
	s.waiting = append(s.waiting, p)
}

func (g *gate) makeUrgent(p *place) {
	if p.inWork {
		g.count(p, -1)
	}
	p.urgent = true
	if p.inWork {
		g.count(p, 1)
	}
}

// GateStats say what is asked for now: units for which readers wait, and those for
// which nobody does.
type GateStats struct {
	Urgent            int   `json:"urgent"`
	Background        int   `json:"background"`
	UrgentWaiting     int   `json:"urgentWaiting"` // for their turn
	BackgroundWaiting int   `json:"backgroundWaiting"`
	Bytes             int64 `json:"bytes"` // encoded, that arrive
}

func (g *gate) stats() GateStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := GateStats{Urgent: g.inWork.urgent, Background: g.inWork.background, Bytes: g.inWork.bytes}
	for _, s := range g.queues {
		for _, p := range s.waiting {
			switch {
			case p.shares[0] != s: // it is counted there
			case p.urgent:
				st.UrgentWaiting++
			default:
				st.BackgroundWaiting++
			}
		}
	}
	return st
}

// enter returns when the flight may begin, or ctx is done. Somebody has to want
// it.
func (g *gate) enter(ctx context.Context, p *place) error {
	select {
	case <-p.begins:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.inWork {
		g.end(p)
	} else {
		p.ended = true
		g.endFault(p)
		g.drop(p)
	}
	return context.Cause(ctx)
}

// hasFault tells whether a reader of the share waits for something that was not on
// its way before.
func (g *gate) hasFault(s *Share) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return s.faults > 0
}

func (g *gate) endFault(p *place) {
	if p.fault == nil {
		return
	}
	p.fault.faults--
	p.fault = nil
	if g.calm != nil {
		g.calm()
	}
}

// leave ends a flight that has begun.
func (g *gate) leave(p *place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(p)
}

func (g *gate) count(p *place, n int) {
	for _, c := range []*counts{&g.inWork, &p.share.inWork} {
		if p.urgent {
			c.urgent += n
		} else {
			c.background += n
		}
	}
}

func (g *gate) end(p *place) {
	g.count(p, -1)
	p.inWork, p.ended = false, true
	g.endFault(p)
	g.free(p)
	g.admit()
}

// admit lets all begin that may: one of each share in turn, those first for which
// readers wait.
func (g *gate) admit() {
	for g.admitOne(true) {
	}
	// Readers that still wait do so for their own share, or for all; then the
	// background does too.
	for g.admitOne(false) {
	}
}

func (g *gate) admitOne(urgent bool) bool {
	for range g.queues {
		s := g.queues[0]
		g.queues = append(g.queues[1:], s)
		if p := s.next(urgent); p != nil && g.allow(s, urgent) {
			g.drop(p)
			p.inWork, p.share = true, s
			g.count(p, 1)
			close(p.begins)
			return true
		}
	}
	return false
}

// next returns the share's first flight of that kind that waits.
func (s *Share) next(urgent bool) *place {
	for _, p := range s.waiting {
		if p.urgent == urgent {
			return p
		}
	}
	return nil
}

func (g *gate) allow(s *Share, urgent bool) bool {
	if urgent && s.inWork.urgent < alwaysPerShare {
		return true
	}
	if !urgent && (g.inWork.background >= maxBackground || s.inWork.background >= maxBackgroundPerShare) {
		return false
	}
	return g.inWork.flights() < maxFlights && s.inWork.flights() < maxPerShare
}

// drop takes a flight out of its queues.
func (g *gate) drop(p *place) {
	for _, s := range p.shares {
		s.waiting = slices.DeleteFunc(s.waiting, func(other *place) bool { return other == p })
		if len(s.waiting) == 0 {
			g.queues = slices.DeleteFunc(g.queues, func(other *Share) bool { return other == s })
		}
	}
}

// grow returns when there is room for the bytes of a flight that has begun, or
// ctx is done. Room that it had before is given back.
func (g *gate) grow(ctx context.Context, p *place, n int64) error {
	for {
		freed := g.tryGrow(p, n)
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

// tryGrow returns nil if there was room, or else what is closed when there may be.
func (g *gate) tryGrow(p *place, n int64) (freed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free(p)
	limit := int64(maxBytes)
	if !p.urgent {
		limit /= 2
	}
	if g.inWork.bytes+n > limit && !g.moveToIdle(p) {
		if g.freed == nil {
			g.freed = make(chan struct{})
		}
		return g.freed
	}
	p.bytes = n
	g.inWork.bytes += n
	p.share.inWork.bytes += n
	return nil
}

// moveToIdle makes a flight part of a share that wants it and to which nothing
// arrives, if there is one.
func (g *gate) moveToIdle(p *place) bool {
	for _, s := range p.shares {
		if s.inWork.bytes == 0 {
			g.count(p, -1)
			p.share = s
			g.count(p, 1)
			return true
		}
	}
	return false
}

func (g *gate) free(p *place) {
	if p.bytes == 0 {
		return
	}
	g.inWork.bytes -= p.bytes
	p.share.inWork.bytes -= p.bytes
	p.bytes = 0
	g.wake()
}

// wake has those look again who wait for bytes.
func (g *gate) wake() {
	if g.freed != nil {
		close(g.freed)
		g.freed = nil
	}
}
