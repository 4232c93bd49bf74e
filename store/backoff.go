package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// errFailing is returned to background requests while the source fails.
var errFailing = errors.New("the source fails, so only readers' requests are sent")

// backoff stops background requests for maxPause after each failure of the source. Readers'
// requests are still sent.
type backoff struct{ until atomic.Int64 } // end of the pause, in Unix nanoseconds; 0: the source works

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

// left returns the rest of the pause of background requests. If it is not positive, there is no
// pause.
func (b *backoff) left() time.Duration { return time.Until(time.Unix(0, b.until.Load())) }
