package store

import (
	"sync"
	"time"
)

// The link is measured as BBR does it (Cardwell and others, "BBR:
// Congestion-Based Congestion Control", ACM Queue 14/5, 2016): what it carries is the
// largest rate at which answers arrived of late, what a round trip takes the smallest
// time that a first byte took, and the product of the two is what has to be on its
// way for the link to be full. What is more waits in a queue, and a fault behind it.
// Until the rate is known, what is on its way may grow by what arrives, so that it
// doubles in a round trip; that ends when the rate no longer grows, or when first
// bytes come later, as in HyStart++ (RFC 9406).
// docs/decisions/prefetch.md has the measurements.
const (
	// firstWindow is how many bytes may be on their way before anything is known,
	// leastWindow and mostWindow bound what is known.
	firstWindow = 1 << 20
	leastWindow = 128 << 10
	mostWindow  = 16 << 20
	// gain is by how much the window exceeds what the link was seen to hold: so
	// more is seen if it holds more.
	gain = 1.25
	// fullRounds is how many round trips without growth end the beginning.
	fullRounds = 3
	// leastDelay and mostDelay bound the eighth of a round trip by which first
	// bytes have to be late for that to be a queue; roundSamples is how many of
	// them make that sure.
	leastDelay   = 4 * time.Millisecond
	mostDelay    = 16 * time.Millisecond
	roundSamples = 4
	// rateTime and tripTime are for how long a sample counts, at least; twice as
	// long at most.
	rateTime = 2 * time.Second
	tripTime = 10 * time.Second
	// longTrip is the round trip from which on it is worth asking for more than what a
	// reader waits for, and leastReach and mostReach bound how much.
	longTrip   = 4 * time.Millisecond
	leastReach = 256 << 10
	leastTrips = 8 // have to be known before
	mostReach  = 4 << 20
	// typicalUnit is what an answer is thought to have until its length is known.
	typicalUnit = 48 << 10
)

// link measures the way to the source, by the requests that cross it, and says when
// there is room for one that nobody waits for. It is safe for concurrent use.
type link struct {
	mu        sync.Mutex // guards all that follows, and the crossings
	onTheWay  int64      // bytes that were asked for and have not arrived
	delivered int64      // bytes, in all
	rate      recent     // bytes a second
	trip      recent     // in ns, negative: the most is the shortest
	trips     int        // first bytes that were timed
	known     bool       // the beginning is over
	window    int64      // until then
	limited   bool       // somebody waited for the window in this round
	round     round
	freed     chan struct{} // closed when there may be room; nil if nobody waits
}

// round is one round trip of the beginning.
type round struct {
	end     int64   // it ends with a request that was made when so much had been delivered
	best    float64 // the rate of the rounds before
	full    int     // rounds without growth, in a row
	samples int     // of first bytes
	least   time.Duration
}

// crossing is one request's way over the link.
type crossing struct {
	left   int64 // bytes that have not arrived
	began  time.Time
	before int64 // what the link had delivered then
}

// expect adds a request that will bring about n bytes.
func (l *link) expect(c *crossing, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.left = n
	l.onTheWay += n
}

// begin says that the request is made.
func (l *link) begin(c *crossing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.began, c.before = time.Now(), l.delivered
}

// answer says that an answer of that length (-1: not known) has begun, and how long
// its first byte took.
func (l *link) answer(c *crossing, length int64, trip time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if length >= 0 {
		l.onTheWay += length - c.left
		c.left = length
	}
	if trip <= 0 {
		return
	}
	l.trip.add(-float64(trip), tripTime)
	l.trips++
	r := &l.round
	if r.samples++; r.samples == 1 || trip < r.least {
		r.least = trip
	}
}

// arrive says that n bytes have come.
func (l *link) arrive(c *crossing, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered += n
	if !l.known && l.limited {
		l.window = min(max(l.window, firstWindow)+n, mostWindow)
	}
	n = min(n, c.left)
	c.left -= n
	l.onTheWay -= n
	l.wakeLocked()
}

// end says that nothing more comes, and whether all has.
func (l *link) end(c *crossing, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onTheWay -= c.left
	c.left = 0
	took := time.Since(c.began)
	if whole && took > 0 && took >= l.roundTrip() {
		l.rate.add(float64(l.delivered-c.before)/took.Seconds(), rateTime)
		l.endRound(c)
	}
	l.wakeLocked()
}

// endRound ends a round trip if the request was made within it, and looks whether
// the link is full.
func (l *link) endRound(c *crossing) {
	r := &l.round
	if c.before < r.end {
		return
	}
	if !l.known && l.limited {
		late := min(max(l.roundTrip()/8, leastDelay), mostDelay)
		if best := l.rate.most(); best >= gain*r.best {
			r.best, r.full = best, 0
		} else {
			r.full++
		}
		l.known = r.full == fullRounds || r.samples >= roundSamples && r.least > l.roundTrip()+late
	}
	r.end, r.samples, l.limited = l.delivered, 0, false
}

func (l *link) roundTrip() time.Duration { return time.Duration(-l.trip.most()) }

// holds returns how many bytes the link was seen to hold.
func (l *link) holds() int64 { return int64(l.rate.most() * l.roundTrip().Seconds()) }

// reach returns how many bytes come while a reader waits for a first one, if that is
// long; 0: it is not.
func (l *link) reach() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trips < leastTrips || l.roundTrip() < longTrip {
		return 0
	}
	return min(max(int64(gain*float64(l.holds())), leastReach), mostReach)
}

func (l *link) room() int64 {
	if !l.known {
		return max(l.window, firstWindow)
	}
	return min(max(int64(gain*float64(l.holds())), leastWindow), mostWindow)
}

// hasRoom tells whether so little is on its way that more may be asked for.
func (l *link) hasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.onTheWay < l.room() {
		return true
	}
	l.limited = true
	return false
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
	return LinkStats{Rate: int64(l.rate.most()), RoundTrip: l.roundTrip(), Window: l.room(), OnTheWay: l.onTheWay}
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
