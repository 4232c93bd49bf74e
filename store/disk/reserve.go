package disk

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

var errNoRoom = errors.New("nothing in the cache can be evicted")

// reserve finds room for size bytes in the active segment, and begins another one as needed. If the
// owner has not made enough room ahead, reserve evicts something (evictOldest).
func (c *Cache) reserve(size int64) (*segment, uint32, error) {
	if s, offset, ok := c.allot(&c.active, size); ok {
		return s, offset, nil
	}
	c.slow.Lock()
	defer c.slow.Unlock()
	for {
		s, offset, ok := c.allot(&c.active, size) // another caller may have begun a segment
		switch {
		case ok:
			return s, offset, nil
		case c.fitsSegment():
			if err := c.begin(&c.active); err != nil {
				return nil, 0, err
			}
		case !c.evictOldest():
			return nil, 0, errNoRoom
		}
	}
}

// reserveKept does what reserve does, for a record that moves to the kept segment. Put leaves room
// for one more segment, so that pinned records can always move. Free space on the disk does not
// count, only the limit, because the record's old segment is about to be freed. The caller holds
// slow.
func (c *Cache) reserveKept(size int64) (*segment, uint32, error) {
	c.mu.RLock()
	fits := c.fits(onDisk(size) + onDisk(tableEntry))
	c.mu.RUnlock()
	if !fits {
		return nil, 0, fmt.Errorf("no room within the cache's limit of %d bytes", c.limits.Size)
	}
	s, offset, ok := c.allot(&c.kept, size)
	if ok {
		return s, offset, nil
	}
	if err := c.begin(&c.kept); err != nil {
		return nil, 0, err
	}
	if s, offset, ok = c.allot(&c.kept, size); !ok {
		return nil, 0, fmt.Errorf("a record of %d bytes exceeds a segment", size)
	}
	return s, offset, nil
}

// allot calls space.allot. If that fails, it may have sealed a segment, so allot wakes the owner,
// which makes room and writes tables.
func (c *Cache) allot(where **segment, size int64) (s *segment, offset uint32, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, offset, ok = c.space.allot(where, size); !ok {
		c.wakeOwner()
	}
	return s, offset, ok
}

// fitsSegment reports whether there is room for another active segment.
func (c *Cache) fitsSegment() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	least := c.segmentSize
	if len(c.pins) > 0 || !c.isLoaded() {
		least *= 2 // so that pinned records can always move
	}
	return c.used+least <= c.room && c.fits(least)
}

// begin makes a segment and puts it at where. The caller holds slow, but not mu: readers must not
// wait for a disk that is slow to make a file.
func (c *Cache) begin(where **segment) error {
	number := c.next
	c.next++
	s, err := createSegment(c.dir, number, c.segmentSize, c.reads)
	if errors.Is(err, os.ErrNotExist) && os.Mkdir(c.dir, 0o700) == nil { // it had been removed
		s, err = createSegment(c.dir, number, c.segmentSize, c.reads)
	}
	if err != nil {
		return err
	}
	s.used.Store(c.clock.Add(1))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.include(s)
	*where = s
	return nil
}

// sealAll seals the segments that are being written, so that they can be evicted. The caller holds
// slow, so that no new segment is sealed before its first record.
func (c *Cache) sealAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seal(&c.active)
	c.seal(&c.kept)
}

// segments returns all segments, sealed or not. The caller holds mu.
func (c *Cache) segments() []*segment {
	return slices.DeleteFunc(slices.Clone(c.index.segments), func(s *segment) bool { return s == nil })
}
