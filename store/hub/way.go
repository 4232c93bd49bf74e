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
}

// add notes that n bytes have come now.
func (a *arrival) add(n int) {
	now := time.Now()
	if now.Sub(a.last) > leastTook {
		a.since, a.burst = now, 0
	}
	a.last = now
	if a.burst += n; n > 0 && a.burst >= leastBurst {
		a.way.came(float64(a.burst) / (now.Sub(a.since) + leastTook).Seconds())
	}
}
