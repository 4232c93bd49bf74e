package disk

import "errors"

// ErrFull says that there is no room without something else having to go.
var ErrFull = errors.New("the cache is full, and nothing goes for what nobody waits for")

// errHalf says that files beside the chunks, with what is pinned, take what they may.
var errHalf = errors.New("local devices may take half of the cache, and less if much is pinned: make the cache larger")

// Files beside the chunks are somebody else's (package mount has some): they hold what
// chunks hold in another form, are on the cache's disk, and count as the cache's
// within its limit. The cache never reads them.

// Beside has yield called when the cache must give way, before any chunk goes: it
// removes one of those files that nobody uses, calls Give for it, and returns how much
// that freed, or 0. It must not wait for what may wait for the cache.
func (c *Cache) Beside(yield func() int64) {
	c.slow.Lock()
	defer c.slow.Unlock()
	c.yield = yield
}

// Take counts so many bytes more as a file beside the chunks, if there is room for it
// and nothing has to go.
func (c *Cache) Take(bytes int64) error {
	if cause := c.isAbsent(); cause != nil {
		return cause
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if after := c.beside + bytes; after > c.limits.Size/2 || c.pinned > (c.limits.Size-after)/2 {
		return errHalf
	}
	if !c.hasRoom(bytes) {
		return ErrFull
	}
	c.hold(bytes)
	return nil
}

// Hold counts a file beside the chunks that is there already.
func (c *Cache) Hold(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold(bytes)
}

// Give undoes Take or Hold: the file is gone.
func (c *Cache) Give(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold(-bytes)
}

// hold counts; mu is held.
func (c *Cache) hold(bytes int64) {
	c.beside += bytes
	c.used += bytes
}

// HasRoom tells whether so much can be put in without anything having to go, now or in
// a moment.
func (c *Cache) HasRoom(bytes int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.absent == nil && c.hasRoom(bytes)
}

func (c *Cache) hasRoom(bytes int64) bool { return c.used+bytes <= c.room-c.margin(2) }

// giveWay has one file go that is beside the chunks, and returns how much that freed.
// The caller holds slow.
func (c *Cache) giveWay() (freed int64) {
	if c.yield != nil {
		freed = c.yield()
		c.evicted.Add(freed)
	}
	return freed
}

func (c *Cache) besides() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.beside
}
