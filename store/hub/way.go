package hub

import (
	"sync"
	"time"
)

const (
	// longTrip is the round trip from which on it is worth making connections before
	// they are needed, wayTime for how long the shortest one counts, and the highest rate.
	longTrip = 4 * time.Millisecond
	wayTime  = 10 * time.Second
	// leastBurst is how much has to come without a pause, in bytes, to tell at what rate it
	// comes. It counts as having taken leastTook longer than it was seen to: what had piled up
	// while the processors were busy is read all at once. And so long is a pause: over a long way
	// TCP brings an answer in bursts at first, each of twice as much as the one before.
	leastBurst = 128 << 10
	leastTook  = 5 * time.Millisecond
	// leastWhole is how long an answer has to be that never came in a burst, in bytes, to
	// tell a rate. For rateTime a rate tells of what comes next.
	leastWhole = 256 << 10
	rateTime   = time.Minute
)

// way is what pulls have seen of the way to a hub.
type way struct {
	mu       sync.Mutex    // guards what follows
	shortest time.Duration // of late, to a first byte; 0: not known
	at       time.Time     // when that was
	rate     float64       // bytes a second, the most of late; 0: not known
	rateAt   time.Time     // when that was
}

// trip notes how long a first byte took; 0: it is not known.
func (w *way) trip(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took > 0 && (w.shortest == 0 || took < w.shortest || time.Since(w.at) > wayTime) {
		w.shortest, w.at = took, time.Now()
	}
}

// came notes at what rate an answer comes.
func (w *way) came(rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rate > w.rate || time.Since(w.rateAt) > wayTime {
		w.rate, w.rateAt = rate, time.Now()
	}
}

func (w *way) seen() (roundTrip time.Duration, rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.rateAt) > rateTime {
		return w.shortest, 0
	}
	return w.shortest, w.rate
}

func (w *way) isLong() bool {
	trip, _ := w.seen()
	return trip >= longTrip
}

// arrival tells a way at what rate one answer comes.
type arrival struct {
	way         *way
	since, last time.Time // when the burst began, and when some of it came last
	burst       int       // its bytes
	whole       int       // bytes of the answer so far
	told        bool      // a burst has
	marks       [2]mark   // where it was at least twice as long as at the mark before
}

// mark is when so many bytes of an answer had come.
type mark struct {
	bytes int
	at    time.Time
}

// add notes that n bytes have come now.
func (a *arrival) add(n int) {
	if n <= 0 {
		return
	}
	now := time.Now()
	if now.Sub(a.last) > leastTook {
		a.since, a.burst = now, 0
	}
	a.last = now
	if a.burst += n; a.burst >= leastBurst {
		a.told = true
		a.way.came(float64(a.burst) / (now.Sub(a.since) + leastTook).Seconds())
	}
	if a.whole += n; a.whole >= 2*a.marks[1].bytes {
		a.marks[0], a.marks[1] = a.marks[1], mark{a.whole, now}
	}
}

// end notes at what rate a long answer came that never came in a burst, once all of it is
// here. Only the last half counts, or a little more, as TCP begins slowly. So the link is slow,
// or many have it: for nodes that start at the same instant it is worse if each takes more for granted.
func (a *arrival) end() {
	if half := a.marks[0]; !a.told && a.whole >= leastWhole {
		a.way.came(float64(a.whole-half.bytes) / (a.last.Sub(half.at) + leastTook).Seconds())
	}
}
