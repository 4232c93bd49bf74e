package disk

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"
)

// watch is how often the owner looks at the disk without being called.
const watch = 2 * time.Second

// call wakes the owner.
func (c *Cache) call() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// own does what takes long, so that Put need not, until ctx is done.
func (c *Cache) own(ctx context.Context) {
	tick := time.NewTicker(watch)
	defer tick.Stop()
	for {
		select {
		case <-c.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c.measure()
		c.tend(ctx)
	}
}

// tend has a spare segment, writes tables, removes segments with nothing in them, and
// makes room.
func (c *Cache) tend(ctx context.Context) {
	c.slow.Lock()
	if c.isUsed() && !c.isOff() {
		_ = c.prepare() // who needs it tries again, and says what fails
	}
	c.writeTables()
	c.slow.Unlock()
	c.removeEmpty()
	for margins := int64(1); ctx.Err() == nil && c.relieve(margins); margins = 2 {
	}
}

// relieve frees something if less than so many margins are free, and tells whether it
// did. Whether it is needed is asked with slow held: somebody else may have done it.
func (c *Cache) relieve(margins int64) bool {
	c.slow.Lock()
	defer c.slow.Unlock()
	c.mu.RLock()
	tight := c.isTight(margins)
	c.mu.RUnlock()
	return tight && c.evictOldest()
}

// margin is how much stays free of the room: what is under one is made two.
// Three segments are time enough to free the next, and an eighth where they are
// few.
func (c *Cache) margin(n int64) int64 { return n * min(3*c.segmentSize, c.room/8) }

// isTight tells whether less than n margins are free of the room, or segments are
// many. The caller holds mu.
func (c *Cache) isTight(n int64) bool { return c.used > c.room-c.margin(n) || c.tooMany() }

// tooMany tells whether there are more than twice the segments of a full cache: some
// are small, because Evict and Prune end those that are written, and so does a
// restart. Each costs an open file. The caller holds mu.
func (c *Cache) tooMany() bool { return int64(len(c.sealed)) > 2*c.limits.Size/c.segmentSize }

func (c *Cache) areMany() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.tooMany()
}

// isUsed tells whether anything has been put in.
func (c *Cache) isUsed() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.used > 0
}

// removeEmpty removes the sealed segments of which nothing is in the index.
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

// byAge returns the sealed segments, the one that was used least recently first.
func (c *Cache) byAge() []*segment {
	c.mu.RLock()
	list := slices.Clone(c.sealed)
	c.mu.RUnlock()
	ages := make(map[*segment]int64, len(list)) // they change meanwhile
	for _, s := range list {
		ages[s] = s.used.Load()
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(ages[a], ages[b]) })
	return list
}

// writeTables writes the tables of sealed segments that have none, once nothing
// is on its way into them. The caller holds slow.
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
			c.log.Warn("write the table of a cache segment; the next start will scan it", "cause", err)
		}
	}
}

// keepAges has the files' times say in which order the segments were used: the
// next Open goes by them.
func (c *Cache) keepAges(sealed []*segment) {
	slices.SortFunc(sealed, func(a, b *segment) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	now := time.Now()
	for i, s := range sealed {
		at := now.Add(time.Duration(i-len(sealed)) * time.Millisecond)
		if err := os.Chtimes(s.path+".segment", at, at); err != nil {
			c.log.Warn("keep the age of a cache segment", "cause", err)
		}
	}
}
