package resolver

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"lighter/sleep"
	"lighter/store/origin"
)

// retry calls try until it succeeds, pause returns false, or ctx ends. pause gets the error of an
// attempt, and returns how long to wait before the next attempt. retry returns the last error.
func retry(ctx context.Context, try func() error, pause func(error) (time.Duration, bool)) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if wait, again := pause(err); !again || !sleep.For(ctx, wait) {
			return err
		}
	}
}

// retryAfter returns how long to wait before the hubs are asked again, if their answer says so
// (Retry-After). Jitter spreads the retries of nodes that got the same answer.
func retryAfter(err error) (wait time.Duration, ok bool) {
	var busy *origin.Unavailable
	if !errors.As(err, &busy) || busy.After == 0 {
		return 0, false
	}
	return busy.After + rand.N(busy.After/2+1), true
}
