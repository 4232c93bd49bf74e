package disk

import (
	"errors"
	"os"
)

var (
	errNoRoom  = errors.New("nothing in the cache can be evicted")
	errNoSpare = errors.New("there is no spare segment")
)

// reserve finds room for size bytes in the active segment, and begins another one as needed. If the
// owner has not made enough room ahead, reserve evicts the oldest segment.
func (c *Cache) reserve(size int64) (*segment, uint32, error) {
	s, offset, err := c.tryReserve(size)
	if err != errNoRoom && err != errNoSpare {
		return s, offset, err
	}
	c.slow.Lock()
	defer c.slow.Unlock()
	for {
		s, offset, err = c.tryReserve(size) // the owner may have made room meanwhile
		switch {
		case err == errNoRoom && c.evictOldest():
		case err == errNoSpare:
			if err := c.prepare(); err != nil {
				return nil, 0, err
			}
		default:
			return s, offset, err
		}
	}
}

// tryReserve is reserve without evicting or making a segment: it returns errNoRoom or errNoSpare
// instead.
func (c *Cache) tryReserve(size int64) (*segment, uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealFull(&c.active, size)
	if c.active == nil {
		least := c.segmentSize
		if len(c.pins) > 0 || !c.isLoaded() {
			least *= 2 // so that pinned records can always move
		}
		if c.used+least > c.room || !c.fits(least) {
			return nil, 0, errNoRoom
		}
		if err := c.begin(&c.active); err != nil {
			return nil, 0, err
		}
		c.wakeOwner() // for another spare, and room
	}
	return c.active, c.allot(c.active, size), nil
}

// fits reports whether size bytes more stay within the limit even when the active segment is full.
// The caller holds mu.
func (c *Cache) fits(size int64) bool {
	if c.active != nil {
		size += max(0, c.segmentSize-c.active.cost())
	}
	return c.used+size+directoryCost <= c.limits.Size
}

// begin makes the spare the segment at where. The caller holds mu.
func (c *Cache) begin(where **segment) error {
	s := c.spare
	if s == nil {
		return errNoSpare
	}
	c.spare = nil
	c.index.include(s)
	s.used.Store(c.clock.Add(1))
	*where = s
	c.used += s.cost()
	return nil
}

// prepare makes the spare if there is none. The caller holds slow, but not mu: readers must not
// wait for a disk that is slow to make a file.
func (c *Cache) prepare() error {
	c.mu.Lock()
	if c.spare != nil {
		c.mu.Unlock()
		return nil
	}
	number := c.next
	c.next++
	c.mu.Unlock()
	s, err := createSegment(c.dir, number, c.segmentSize, c.reads)
	if errors.Is(err, os.ErrNotExist) && os.Mkdir(c.dir, 0o700) == nil { // it had been removed
		s, err = createSegment(c.dir, number, c.segmentSize, c.reads)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spare = s
	return nil
}

// dropSpare removes the spare. The caller holds slow.
func (c *Cache) dropSpare() {
	c.mu.Lock()
	s := c.spare
	c.spare = nil
	c.mu.Unlock()
	if s == nil {
		return
	}
	if err := errors.Join(s.unlink(), s.file.Close()); err != nil {
		c.log.Warn("spare cache segment cannot be removed", "segment", s.path, "err", err)
	}
}

// allot reserves size bytes of a segment. The caller holds mu.
func (c *Cache) allot(s *segment, size int64) (offset uint32) {
	offset = uint32(s.size)
	c.used -= s.cost()
	s.size += size
	s.reserved++
	s.pending++
	c.used += s.cost()
	return offset
}

// sealFull seals a segment that has no room for size bytes. The caller holds mu.
func (c *Cache) sealFull(where **segment, size int64) {
	if *where != nil && costOf((*where).size+size, (*where).reserved+1) > c.segmentSize {
		c.seal(where)
		c.wakeOwner() // for its table
	}
}

// seal seals the segment at where, if there is one. The caller holds mu.
func (c *Cache) seal(where **segment) {
	if *where != nil {
		c.sealed = append(c.sealed, *where)
		*where = nil
	}
}
