package hub

import (
	"sync"
	"time"
)

const (
	// longTrip is the round trip from which on it is worth making connections before
	// they are needed, tripTime for how long the shortest one counts.
	longTrip = 4 * time.Millisecond
	tripTime = 10 * time.Second
	// leastLarge is how long an answer has to be, in bytes, to tell at what rate it came.
	// It counts as having taken leastTook longer than it was seen to: what had piled up
	// while the processors were busy is read all at once.
	leastLarge = 256 << 10
	leastTook  = 5 * time.Millisecond
	// startGain and startBytes say how many connections a start has use for: it begins
	// with that many times what the way holds on its way (store/link.go), and asks for so
	// many bytes on each. On a way that many nodes fill at once, that is few.
	startGain  = 3
	startBytes = 128 << 10
)

// way is what pulls have seen of the way to a hub.
type way struct {
	mu       sync.Mutex    // guards what follows
	shortest time.Duration // of late, to a first byte; 0: not known
	at       time.Time     // when that was
	rate     float64       // bytes a second, of the last large answer so far; 0: not known
}

// trip notes how long a first byte took; 0: it is not known.
func (w *way) trip(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took > 0 && (w.shortest == 0 || took < w.shortest || time.Since(w.at) > tripTime) {
		w.shortest, w.at = took, time.Now()
	}
}

// came notes that n bytes of an answer came, the last of them so long after the first.
func (w *way) came(n int, took time.Duration) {
	if n < leastLarge || took <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rate = float64(n) / (took + leastTook).Seconds()
}

func (w *way) seen() (roundTrip time.Duration, rate float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shortest, w.rate
}

// connections returns how many are worth making before they are needed.
func (w *way) connections() int {
	trip, rate := w.seen()
	if trip < longTrip {
		return 0
	}
	return int(startGain * rate * trip.Seconds() / startBytes)
}
