package disk

import (
	"context"
	"log/slog"
	"time"
)

// Absent returns a cache for a directory that Open could not open; cause is the reason. The cache
// tries to open the directory every minute. Until then it is empty and stores nothing. It is no
// wrapper around another Cache, because external files count from the beginning, and callers keep
// one *Cache.
func Absent(cause error, dir string, limits Limits, log *slog.Logger) *Cache {
	return absentFor(reopenEvery, cause, dir, limits, log)
}

func absentFor(pause time.Duration, cause error, dir string, limits Limits, log *slog.Logger) *Cache {
	c := newCache(dir, limits, log)
	c.absent = cause
	c.start(func(ctx context.Context) {
		if c.awaitOpen(ctx, pause) {
			c.takeOver(ctx)
		}
	})
	return c
}

// awaitOpen reports whether the cache could be opened before ctx was done.
func (c *Cache) awaitOpen(ctx context.Context, pause time.Duration) bool {
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
			c.log.Info("cache opened", "dir", c.dir)
			return true
		}
		c.mu.Lock()
		c.absent = err
		c.mu.Unlock()
	}
}

// isAbsent returns why there is no cache, or nil if there is one.
func (c *Cache) isAbsent() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.absent
}
