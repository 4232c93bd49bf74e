package disk

import (
	"errors"
	"os"
)

// around is what the directory takes itself, and what a file system writes beside
// the blocks of a file, in bytes.
const around = 32 << 10

var (
	errNoRoom  = errors.New("nothing in the cache can be evicted")
	errNoSpare = errors.New("a segment has to be made")
)

// reserve finds room for size bytes in the active segment, starting another as
// needed. The owner has made room for it; if it did not keep up, the oldest goes
// here and now.
func (c *Cache) reserve(size int64) (*segment, uint32, error) {
	s, offset, err := c.tryReserve(size)
	if err != errNoRoom && err != errNoSpare {
		return s, offset, err
	}
	c.slow.Lock()
	defer c.slow.Unlock()
	for {
		s, offset, err = c.tryReserve(size) // the owner may have been at it
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

// tryReserve is reserve without what takes long: it returns errNoRoom if
// something has to go first, and errNoSpare if a segment has to be made.
func (c *Cache) tryReserve(size int64) (*segment, uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealFull(&c.active, size)
	if c.active == nil {
		least := c.segmentSize
		if len(c.pins) > 0 || !c.isLoaded() {
			least *= 2 // so that what is pinned can always be moved
		}
		if c.used+least > c.room || !c.fits(least) {
			return nil, 0, errNoRoom
		}
		if err := c.begin(&c.active); err != nil {
			return nil, 0, err
		}
		c.call() // for another spare, and room
	}
	return c.active, c.take(c.active, size), nil
}

// fits tells whether size bytes more are within the limit even when the active
// segment is full. The caller holds mu.
func (c *Cache) fits(size int64) bool {
	if c.active != nil {
		size += max(0, c.segmentSize-c.active.cost())
	}
	return c.used+size+around <= c.limits.Size
}

// begin starts a segment with the spare. The caller holds mu.
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

// prepare makes the spare, if there is none: not under mu, for readers would wait
// for a disk that is slow to make a file. The caller holds slow.
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
	if errors.Is(err, os.ErrNotExist) && os.Mkdir(c.dir, 0o700) == nil { // somebody has removed it
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
		c.log.Warn("remove an empty cache segment", "cause", err)
	}
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
	if *where != nil && costOf((*where).size+size, (*where).reserved+1) > c.segmentSize {
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
