// Package sleep has pauses that end early if their context does, so that no goroutine outlives its
// owner, and the lengths of the pauses between tries (Backoff).
package sleep

import (
	"context"
	"time"
)

// For waits for d, or until ctx is done, and reports whether ctx is not done.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
