package disk

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"
)

// wakeOwner makes the owner check the cache now.
func (c *Cache) wakeOwner() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// own maintains the cache until ctx is done. It does the slow work, so that Put need not do it.
func (c *Cache) own(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c.measure()
		c.maintain(ctx)
	}
}

// maintain writes tables, removes empty segments, and makes room.
func (c *Cache) maintain(ctx context.Context) {
	c.slow.Lock()
	c.writeTables()
	c.slow.Unlock()
	c.removeEmpty()
	for margins := int64(1); ctx.Err() == nil && c.relieve(margins); margins = 2 {
	}
}

// relieve evicts something if fewer than that many margins are free, or there are too many
// segments, and reports whether it did.
func (c *Cache) relieve(margins int64) bool {
	c.slow.Lock()
	defer c.slow.Unlock()
	c.mu.RLock() // with slow held, since another caller may just have made room
	tight := c.isTight(margins)
	c.mu.RUnlock()
	return tight && c.evictOldest()
}

// removeEmpty removes the sealed segments to which the index does not point.
func (c *Cache) removeEmpty() {
	for _, s := range c.byAge() {
		c.slow.Lock()
		c.mu.RLock()
		empty := s.live == 0 && s.pending == 0 && !s.gone
		c.mu.RUnlock()
		if empty {
			c.evict(s, nil)
		}
		c.slow.Unlock()
	}
}

// byAge returns the sealed segments, the least recently used one first.
func (c *Cache) byAge() []*segment {
	c.mu.RLock()
	list := slices.Clone(c.sealed)
	c.mu.RUnlock()
	ages := make(map[*segment]int64, len(list)) // a copy, because ages change while the list is sorted
	for _, s := range list {
		ages[s] = s.used.Load()
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(ages[a], ages[b]) })
	return list
}

// writeTables writes the tables of sealed segments that have none and to which nothing is being
// written. The caller holds slow.
func (c *Cache) writeTables() {
	for _, s := range c.byAge() {
		c.mu.Lock()
		records, ids := s.records, s.ids
		if s.gone || s.pending > 0 || ids == nil {
			c.mu.Unlock()
			continue
		}
		s.ids = nil
		c.mu.Unlock()
		if err := s.writeTable(records, ids); err != nil {
			c.log.Warn("cache table cannot be written, the next start will scan the segment",
				"segment", s.path, "err", err)
		}
	}
}

// saveAges stores the order in which the segments were used in their files' times, for the next
// Open.
func (c *Cache) saveAges(sealed []*segment) {
	slices.SortFunc(sealed, func(a, b *segment) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	now := time.Now()
	for i, s := range sealed {
		at := now.Add(time.Duration(i-len(sealed)) * time.Millisecond)
		if err := os.Chtimes(s.path+".segment", at, at); err != nil {
			c.log.Warn("age of a cache segment cannot be stored", "segment", s.path, "err", err)
		}
	}
}
