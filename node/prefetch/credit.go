package prefetch

import (
	"context"
	"sync/atomic"
)

// credit bounds how many bytes of startup packs are fetched in vain (see startupCredit).
type credit struct {
	account *account
	size    int64         // startupCredit; less in tests
	limit   atomic.Int64  // no more is requested while account.debt(startupPart) exceeds this, in bytes
	waiting atomic.Bool   // the stream waits until the debt is smaller, or the limit larger
	wakeup  chan struct{} // tells the waiting stream to check again
}

func newCredit(a *account) credit {
	return credit{account: a, size: startupCredit, wakeup: make(chan struct{}, 1)}
}

// grant allows size more bytes for packs that have become wanted, on top of the debt of earlier
// packs.
func (c *credit) grant() {
	c.limit.Store(max(c.account.debt(startupPart), 0) + c.size)
	c.wake()
}

func (c *credit) isUsedUp() bool { return c.account.debt(startupPart) > c.limit.Load() }

// wait waits until more may be fetched, nothing is wanted, or ctx is done.
func (c *credit) wait(ctx context.Context, isWanted func() bool) {
	defer c.waiting.Store(false)
	for c.isUsedUp() && isWanted() && ctx.Err() == nil {
		if !c.waiting.Swap(true) {
			continue // wake does nothing before waiting is set, so check once more
		}
		select {
		case <-c.wakeup:
		case <-ctx.Done():
		}
	}
}

// wake makes a waiting stream check again.
func (c *credit) wake() {
	if c.waiting.Load() {
		select {
		case c.wakeup <- struct{}{}:
		default:
		}
	}
}
