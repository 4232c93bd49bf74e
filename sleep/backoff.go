package sleep

import (
	"math/rand/v2"
	"time"
)

// Backoff is an exponential backoff: the pauses between tries double from First up to Most. First
// must not exceed Most.
type Backoff struct {
	First, Most time.Duration
	// Jitter is the part of each pause that is random, from 0 to 1. With 0.5, a pause is between
	// half of its length and all of it. So callers that failed together do not return together.
	Jitter float64
}

// After returns the pause after that many failures in a row. After the first failure the pause is
// First less the jitter. A number below 1 counts as 1.
func (b Backoff) After(failures int) time.Duration {
	pause := b.Most
	if doublings := max(failures, 1) - 1; b.First <= b.Most>>doublings {
		pause = b.First << doublings
	}
	return pause - rand.N(time.Duration(b.Jitter*float64(pause))+1)
}
