package store

import (
	"cmp"
	"sync"
	"time"
)

// The link is measured as BBR does it (Cardwell and others, "BBR:
// Congestion-Based Congestion Control", ACM Queue 14/5, 2016): what it carries is the
// largest rate at which answers arrived of late, what a round trip takes the smallest
// time that a first byte took, and the product of the two is what has to be on its
// way for the link to be full. What is more waits in a queue, and a fault behind it.
// Until the rate no longer grows, nearly three times as much may be on its way, so
// that what is known can double in a round trip.
// What is more than that makes a queue, and in a queue every first byte is late: so that
// the window does not grow by what it has itself made, the queue drains once in a while.
// And requests are paced: units that are asked for all at once share the link, and the
// first of them, for which somebody may wait, comes with the last.
// docs/decisions/prefetch.md has the measurements.
const (
	// firstTrip and firstRate, in bytes a second, are what is taken for granted of a link
	// of which nothing was seen, until it is known what it carries: if
	// that is too much, a fault waits some round trips more. leastWindow and mostWindow
	// bound what is known, leastHeld what was seen and is not known yet.
	firstTrip   = 20 * time.Millisecond
	firstRate   = 25 << 20
	leastWindow = 128 << 10
	mostWindow  = 16 << 20
	firstMost   = 8 << 20
	leastHeld   = 512 << 10
	// firstGain is by how much the window exceeds what the link was seen to hold, and
	// the pace what it was seen to carry, while that grows (2/ln 2, as BBR has it), gain
	// by how much after that: so more is seen if there is more. firstMost bounds the first
	// of these windows: beyond it twice as much again comes all on new connections.
	firstGain = 2.89
	gain      = 1.25
	// growth is what counts as such, and flatSamples is how many samples without it
	// end the beginning; so do lateTrips in a row that are longer than the shortest, on
	// connections that were there, by an eighth within these bounds (RFC 9406, HyStart++):
	// they were in a queue. A short queue before the narrowest place drops what is more,
	// and what is dropped comes a fifth of a second late.
	growth        = 1.25
	flatSamples   = 6
	lateTrips     = 8
	leastLateness = 4 * time.Millisecond
	mostLateness  = 16 * time.Millisecond
	// firstSample is the least time over which a rate is measured in the beginning, or
	// a round trip, and laterSample after that, or two: so that what had piled up while
	// the processors were busy is not taken for what the link carries.
	firstSample = 10 * time.Millisecond
	laterSample = 100 * time.Millisecond
	// rateTime and tripTime are for how long a sample counts, at least; twice as
	// long at most.
	rateTime = 2 * time.Second
	tripTime = 10 * time.Second
	// longTrip is the round trip from which on it is worth asking for more than what a
	// reader waits for, and leastReach and mostReach bound how much. leastTrips first
	// bytes have to have been timed before, spareTrips before a stream has connections made.
	longTrip   = 4 * time.Millisecond
	leastReach = 128 << 10
	mostReach  = 4 << 20
	leastTrips = 8
	spareTrips = 4
	// spareBytes is what is on its way for each connection that is made ahead.
	spareBytes = 128 << 10
	// typicalUnit is what an answer is thought to have until its length is known.
	typicalUnit = 48 << 10
)

// link measures the way to the source, by the requests that cross it, and says when
// there is room for one that nobody waits for. It is safe for concurrent use.
type link struct {
	mu       sync.Mutex // guards all that follows, and the crossings
	onTheWay int64      // bytes that were asked for and have not arrived
	paced    int64      // of those, for nobody who waited
	rate     recent     // bytes a second
	trip     recent     // in ns, negative: the most is the shortest
	trips    int        // first bytes that were timed
	supposed supposed
	drained  time.Time // when the queue last began to
	lead     float64   // bytes that were asked for earlier than the pace has it
	leadAt   time.Time // when that was so
	sample   sample
	best     float64       // the rate when it last grew
	flat     int           // samples since then for which the window was full
	late     int           // first bytes in a row that came from a queue
	line     []*waiter     // shares for which nothing is on its way, the first is next
	freed    chan struct{} // closed when there may be room; nil if nobody waits
}

// supposed is what the source had seen before anything was asked for: the trip counts
// until one was timed, the rate until it is known what the link carries.
type supposed struct {
	trip time.Duration
	rate float64 // bytes a second
}

// sample is a rate that is being measured.
type sample struct {
	since     time.Time
	delivered int64
	full      bool // somebody waited for the window
}

// crossing is one request's way over the link.
type crossing struct {
	left  int64 // bytes that have not arrived
	paced bool
	began time.Time
}

// suppose says what was seen of the way, which counts if nothing was timed here. 0 is what
// is not known.
func (l *link) suppose(trip time.Duration, rate float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trips == 0 {
		l.supposed = supposed{trip, rate}
	}
}

// expect adds a request that will bring about n bytes.
func (l *link) expect(c *crossing, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.left = n
	l.onTheWay += n
}

// answer says that an answer of that length (-1: not known) has begun, how long its
// first byte took, and whether its connection had brought one before. It tells how many
// connections are worth being ready for what is asked for next: none if it is not one of a
// stream over a long way, else one for each spareBytes of the window.
func (l *link) answer(c *crossing, length int64, trip time.Duration, reused bool) (worthConnecting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if length >= 0 {
		l.onTheWay += length - c.left
		if c.paced {
			l.paced += length - c.left
			l.ahead(length - c.left)
		}
		c.left = length
	}
	if trip > 0 {
		l.trip.add(-float64(trip), tripTime)
		if l.trips++; l.trips == 1 && trip >= max(2*l.supposed.trip, longTrip) {
			l.supposed.rate = min(l.supposed.rate, firstRate) // that was another way, or one that many have
		}
		switch late := min(max(l.roundTrip()/8, leastLateness), mostLateness); {
		case trip <= l.roundTrip()+late:
			l.late = 0
		case reused:
			l.late++
		}
		if l.late >= lateTrips && l.best > 0 {
			l.flat, l.late = flatSamples, 0
			l.supposed.rate = 0
		}
	}
	if !c.paced || l.trips < spareTrips || !l.isLong() {
		return 0
	}
	return int(l.window() / spareBytes)
}

// arrive says that n bytes have come.
func (l *link) arrive(c *crossing, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sample.delivered += n; l.sample.since.IsZero() {
		l.sample = sample{since: time.Now()}
	}
	if took := time.Since(l.sample.since); took >= l.sampleTime() {
		l.learn(float64(l.sample.delivered)/took.Seconds(), l.sample.full)
		l.sample = sample{since: time.Now()}
	}
	l.came(c, min(n, c.left))
	if l.paced < l.window() { // or nobody's turn has come
		l.wakeLocked()
	}
}

// came takes n bytes off what is on its way.
func (l *link) came(c *crossing, n int64) {
	c.left -= n
	l.onTheWay -= n
	if c.paced {
		l.paced -= n
	}
}

func (l *link) sampleTime() time.Duration {
	if l.isNew() {
		return max(l.roundTrip(), firstSample)
	}
	return max(2*l.roundTrip(), laterSample)
}

// learn takes a sample of the rate, and whether the window was full meanwhile. If not,
// so little came because so little was asked for: that says nothing of the link.
func (l *link) learn(rate float64, full bool) {
	if full || rate > l.rate.most() {
		l.rate.add(rate, rateTime)
	}
	switch best := l.rate.most(); {
	case best >= growth*l.best:
		l.best, l.flat = best, 0
	case full:
		l.flat++
	}
	if !l.isNew() {
		l.supposed.rate = 0
	}
}

// end says that nothing more of a request comes.
func (l *link) end(c *crossing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.came(c, c.left)
	l.wakeLocked()
}

// roundTrip returns the time to a first byte; 0: nothing is known of it.
func (l *link) roundTrip() time.Duration {
	if l.trips == 0 {
		return l.supposed.trip
	}
	return time.Duration(-l.trip.most())
}

// carries returns how many bytes a second the link carries as far as it is known.
func (l *link) carries() float64 {
	if l.isNew() {
		return max(l.rate.most(), l.believed())
	}
	return l.rate.most()
}

// believed returns what is taken for granted until it is known what the link carries: what
// was seen, if anything was. Over a long way that may have been TCP's slow beginning, so it is no less
// than what brings leastHeld in a round trip.
func (l *link) believed() float64 {
	if l.supposed.rate == 0 {
		return firstRate
	}
	return max(l.supposed.rate, min(leastHeld/l.takes().Seconds(), firstRate))
}

// takes returns how long a round trip is thought to be.
func (l *link) takes() time.Duration { return cmp.Or(l.roundTrip(), firstTrip) }

// holds returns how many bytes fit on the way.
func (l *link) holds() float64 { return l.carries() * l.takes().Seconds() }

// reach returns how many bytes come while a reader waits for a first one, if that is
// long; 0: it is not.
func (l *link) reach() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trips < leastTrips || !l.isLong() {
		return 0
	}
	if l.onTheWay >= l.window() {
		l.sample.full = true
	}
	holds := l.holds()
	if l.isNew() { // too much costs only who waits for it
		holds = max(holds, firstRate*l.takes().Seconds())
	}
	return min(max(int64(gain*holds), leastReach), mostReach)
}

// isLong tells whether a round trip is long enough for something to be done against it.
func (l *link) isLong() bool { return l.roundTrip() >= longTrip }

// isNew tells whether what the link holds may still be found out.
func (l *link) isNew() bool { return l.flat < flatSamples }

func (l *link) gain() float64 {
	if l.isNew() {
		return firstGain
	}
	return gain
}

func (l *link) window() int64 {
	most := int64(mostWindow)
	if l.isNew() { // or again, as it carries more than was known
		most = min(max(firstMost, int64(gain*l.rate.most()*l.roundTrip().Seconds())), most)
	}
	return min(max(int64(l.gain()*l.holds()), leastWindow), most)
}

// changed returns what is closed when there may be room.
func (l *link) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	return l.freed
}

// wake has those look again who wait for room.
func (l *link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeLocked()
}

func (l *link) wakeLocked() {
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}

// LinkStats say what the link to the hubs is taken to be.
type LinkStats struct {
	Rate      int64         `json:"bytesPerSecond"` // the most of late
	RoundTrip time.Duration `json:"roundTripNs"`    // the least of late: to the first byte of an answer
	Window    int64         `json:"windowBytes"`    // what may be on its way for nobody who waits
	OnTheWay  int64         `json:"onTheWayBytes"`
}

func (l *link) stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LinkStats{Rate: int64(l.rate.most()), RoundTrip: l.roundTrip(), Window: l.window(), OnTheWay: l.onTheWay}
}

// recent is the largest of the samples of the last while. When none come it knows
// the last ones for ever.
type recent struct {
	now, before float64
	any, former bool
	since       time.Time
}

// add adds a sample, which counts for time at least.
func (r *recent) add(x float64, keep time.Duration) {
	if t := time.Now(); t.Sub(r.since) > keep {
		r.before, r.former, r.any, r.since = r.now, r.any, false, t
	}
	if !r.any || x > r.now {
		r.now, r.any = x, true
	}
}

func (r *recent) most() float64 {
	if r.former && (!r.any || r.before > r.now) {
		return r.before
	}
	return r.now
}
