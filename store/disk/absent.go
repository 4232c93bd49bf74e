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
			c.takeOver(ctx)
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
		err := c.open()
		if err == nil {
			c.log.Info("there is a cache now", "dir", c.dir)
			return true
		}
		c.mu.Lock()
		c.absent = err
		c.mu.Unlock()
	}
}

// isAbsent says why there is no cache, or nothing if there is one.
func (c *Cache) isAbsent() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.absent
}
