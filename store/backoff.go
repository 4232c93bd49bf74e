package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// errFailing is returned to background requests while the source fails.
var errFailing = errors.New("the source fails, so it is asked for readers only")

// backoff keeps background requests from a source that fails, for maxPause after each failure.
// Requests of readers are sent all the same.
type backoff struct{ until atomic.Int64 } // Unix nanoseconds; 0: the source works

func (b *backoff) wrap(next step) step {
	return func(ctx context.Context, f *flight, take func(Answer) error) error {
		err := next(ctx, f, take)
		if err == nil {
			b.until.Store(0)
		} else if !isAnswer(err) && ctx.Err() == nil {
			b.until.Store(time.Now().Add(maxPause).UnixNano())
		}
		return err
	}
}

// left returns how long background requests still have to wait; not positive: they need not wait.
func (b *backoff) left() time.Duration { return time.Until(time.Unix(0, b.until.Load())) }
