package hub

import (
	"sync"
	"time"
)

const (
	// longTrip is the round trip from which on it is worth making connections before
	// they are needed.
	longTrip = 4 * time.Millisecond
	// leastLarge is an answer, in bytes, of which one can tell at what rate it came, if it is
	// not believed to have come in less than leastTook more than was seen: what had piled
	// up while the processors were busy comes at once.
	leastLarge = 256 << 10
	leastTook  = 5 * time.Millisecond
)

// way is what was seen of the way to a hub, by whole answers.
type way struct {
	mu       sync.Mutex    // guards what follows
	shortest time.Duration // to a first byte, on a connection that was there; 0: not known
	rate     float64       // bytes a second, of the last large answer; 0: not known
}

// trip notes how long a first byte took.
func (w *way) trip(r *roundTrip) {
	took := time.Duration(r.took.Load())
	if took <= 0 || !r.reused.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shortest == 0 || took < w.shortest {
		w.shortest = took
	}
}

// came notes that an answer of n bytes came, the last of them so long after the first.
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

func (w *way) isLong() bool {
	trip, _ := w.seen()
	return trip >= longTrip
}
