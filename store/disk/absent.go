package disk

import (
	"context"
	"log/slog"
	"time"
)

// again is the time between two attempts to open a cache that is absent.
const again = time.Minute

// Absent is a cache that Open could not open, for the reason given: it has nothing
// and takes nothing, until it can be opened after all. Every minute its owner tries.
func Absent(cause error, dir string, limits Limits, log *slog.Logger) *Cache {
	return absentFor(again, cause, dir, limits, log)
}

func absentFor(pause time.Duration, cause error, dir string, limits Limits, log *slog.Logger) *Cache {
	c := newCache(dir, limits, segmentSizeOf(limits), log)
	c.absent = cause
	c.start(func(ctx context.Context) {
		if c.appear(ctx, pause) {
			c.own(ctx)
		}
	})
	return c
}

// appear tells whether the cache could be opened before ctx was done.
func (c *Cache) appear(ctx context.Context, pause time.Duration) bool {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		found := newCache(c.dir, c.limits, c.segmentSize, c.log)
		err := found.open()
		if err == nil {
			c.adopt(found)
			c.log.Info("there is a cache now", "dir", c.dir)
			return true
		}
		c.mu.Lock()
		c.absent = err
		c.mu.Unlock()
	}
}

// adopt takes over what another, which nobody knows, has found.
func (c *Cache) adopt(found *Cache) {
	c.slow.Lock()
	defer c.slow.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lock, c.index, c.sealed, c.active, c.next = found.lock, found.index, found.sealed, found.active, found.next
	c.used, c.room, c.free = found.used+c.beside, found.room, found.free
	c.pins, c.pinned, c.pinFiles = found.pins, found.pinned, found.pinFiles
	c.clock.Store(found.clock.Load())
	c.absent = nil
}

// isAbsent says why there is no cache, or nothing if there is one.
func (c *Cache) isAbsent() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.absent
}
