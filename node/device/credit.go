package device

import (
	"context"
	"sync/atomic"
)

const (
	// streamCredit is how many bytes, plain, a pack may bring before any of them is
	// read; of what comes beyond it, one part in streamPart has to be read. So a start
	// that leaves the way of those before it gets a bounded multiple of what it uses.
	streamCredit = 32 << 20
	streamPart   = 4
)

// credit says how much of startup packs may come before it is read.
type credit struct {
	zone  zone          // what came of them
	each  int64         // streamCredit, but in tests
	most  atomic.Int64  // the zone's debt, up to which more may come
	held  atomic.Bool   // somebody waits until more is read, or may come
	freed chan struct{} // holds one when he has to look whether that is so
}

func newCredit() credit { return credit{each: streamCredit, freed: make(chan struct{}, 1)} }

// grant gives credit for a pack, whatever those before it have used up.
func (c *credit) grant() {
	c.most.Store(max(c.zone.debt(streamPart), 0) + c.each)
	c.free()
}

func (c *credit) isUsedUp() bool { return c.zone.debt(streamPart) > c.most.Load() }

// wait waits until more may come, or none is wanted.
func (c *credit) wait(ctx context.Context, isWanted func() bool) {
	defer c.held.Store(false)
	for c.isUsedUp() && isWanted() && ctx.Err() == nil {
		if !c.held.Swap(true) {
			continue // free looked at that before, so look once more
		}
		select {
		case <-c.freed:
		case <-ctx.Done():
		}
	}
}

// free has whoever waits look again.
func (c *credit) free() {
	if c.held.Load() {
		select {
		case c.freed <- struct{}{}:
		default:
		}
	}
}
