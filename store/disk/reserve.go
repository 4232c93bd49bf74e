package disk

import (
	"errors"
	"os"
)

var errNoRoom = errors.New("nothing in the cache can be evicted")

// reserve finds room for size bytes in the active segment, starting another as
// needed. The owner has made room for it; if it did not keep up, the oldest goes
// here and now.
func (c *Cache) reserve(size int64) (*segment, uint32, error) {
	for {
		s, offset, err := c.tryReserve(size)
		if err != errNoRoom {
			return s, offset, err
		}
		c.slow.Lock()
		s, offset, err = c.tryReserve(size) // the owner may have been at it
		if err == errNoRoom && !c.evictOldest() {
			c.slow.Unlock()
			return nil, 0, err
		}
		c.slow.Unlock()
		if err != errNoRoom {
			return s, offset, err
		}
	}
}

// tryReserve is reserve without what takes long: it returns errNoRoom if
// something has to go first.
func (c *Cache) tryReserve(size int64) (*segment, uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealFull(&c.active, size)
	if c.active == nil {
		least := c.segmentSize
		if len(c.pins) > 0 {
			least *= 2 // so that what is pinned can always be moved
		}
		if c.used+least > c.room {
			return nil, 0, errNoRoom
		}
		if err := c.begin(&c.active); err != nil {
			return nil, 0, err
		}
		if c.isTight() {
			c.call()
		}
	}
	return c.active, c.take(c.active, size), nil
}

// begin starts a segment. The caller holds mu.
func (c *Cache) begin(where **segment) error {
	s, err := createSegment(c.dir, c.next)
	if errors.Is(err, os.ErrNotExist) && os.Mkdir(c.dir, 0o700) == nil { // somebody has removed it
		s, err = createSegment(c.dir, c.next)
	}
	if err != nil {
		return err
	}
	c.next++
	s.used.Store(c.clock.Add(1))
	*where = s
	c.used += s.cost()
	return nil
}

// take gives size bytes of a segment away. The caller holds mu.
func (c *Cache) take(s *segment, size int64) (offset uint32) {
	offset = uint32(s.size)
	c.used -= s.cost()
	s.size += size
	s.reserved++
	s.pending++
	c.used += s.cost()
	return offset
}

// sealFull ends a segment in which there is no room for size bytes. The caller
// holds mu.
func (c *Cache) sealFull(where **segment, size int64) {
	if *where != nil && (*where).cost()+size+tableEntry > c.segmentSize {
		c.seal(where)
		c.call() // it wants its table
	}
}

// seal ends a segment. The caller holds mu.
func (c *Cache) seal(where **segment) {
	if *where != nil {
		c.sealed = append(c.sealed, *where)
		*where = nil
	}
}
