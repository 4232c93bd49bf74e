package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// errFailing is returned to background requests while their server fails.
var errFailing = errors.New("its server fails, so only readers' requests are sent")

// backoff stops background requests to a server for maxPause after each of its failures. Readers'
// requests are still sent.
type backoff struct{ until atomic.Int64 } // end of the pause, in Unix nanoseconds; 0: the server works

// obeyBackoff notes the failures of a flight's server.
func obeyBackoff(next step) step {
	return func(ctx context.Context, f *flight, take func(Answer) error) error {
		err := next(ctx, f, take)
		if err == nil {
			f.route.backoff.until.Store(0)
		} else if !isAnswer(err) && ctx.Err() == nil {
			f.route.backoff.until.Store(time.Now().Add(maxPause).UnixNano())
		}
		return err
	}
}

// left returns the rest of the pause of background requests. If it is not positive, there is no
// pause.
func (b *backoff) left() time.Duration { return time.Until(time.Unix(0, b.until.Load())) }
