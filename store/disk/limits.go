package disk

import (
	"errors"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Limits bound how much of the disk the cache takes.
type Limits struct {
	Size int64 // the most that the cache takes, in bytes
	// If less than Low is free on the file system, the cache evicts until High is free, or until it
	// takes only a sixteenth of Size (but at least four segments). The cache stops growing before
	// less than Low is free. If Low is zero, only Size counts.
	Low, High Space
}

// Space is a part of a file system, in percent or in bytes. If both are set, they are added.
type Space struct {
	Percent float64
	Bytes   int64
}

// Of returns the part of a file system of total bytes.
func (s Space) Of(total int64) int64 { return s.Bytes + int64(s.Percent/100*float64(total)) }

// space accounts for the segments, and for the bytes that the cache takes. The cache's mu guards
// all but limits and segmentSize, which do not change.
type space struct {
	limits      Limits
	segmentSize int64

	used int64 // all segments with their tables, pins, and external files
	room int64 // what used may be now: the limit, or less if the disk is short
	free int64 // of the file system, as it was measured last

	sealed []*segment
	active *segment // Put writes to it; nil before the first
	kept   *segment // pinned records move to it from evicted segments; nil before the first
}

func newSpace(limits Limits) space {
	segmentSize := min(max(limits.Size/segments, 4*chunk.MaxLength), 1<<31)
	return space{limits: limits, segmentSize: segmentSize, room: limits.Size}
}

// margin returns the size of n margins in bytes. The owner begins to evict when less than one
// margin of the room is free, and goes on until two margins are free. A margin is three segments,
// which leaves enough time to free the next segment, but at most an eighth of the room.
func (s *space) margin(n int64) int64 { return n * min(3*s.segmentSize, s.room/8) }

// hasRoom reports whether that many more bytes cause no eviction, now or soon after.
func (s *space) hasRoom(bytes int64) bool { return s.used+bytes <= s.room-s.margin(2) }

// isTight reports whether fewer than n margins of the room are free, or there are too many
// segments.
func (s *space) isTight(n int64) bool { return s.used > s.room-s.margin(n) || s.tooMany() }

// tooMany reports whether there are more than twice the segments of a full cache. Some are small,
// because Evict, Prune and restarts seal them early. Each is an open file.
func (s *space) tooMany() bool { return int64(len(s.sealed)) > 2*s.limits.Size/s.segmentSize }

// fits reports whether size more bytes stay within the limit even when the active segment is full.
func (s *space) fits(size int64) bool {
	if s.active != nil {
		size += max(0, s.segmentSize-s.active.cost())
	}
	return s.used+size+directoryCost <= s.limits.Size
}

// allot reserves size bytes of the segment at where. If it has less room, allot seals it and
// reports false. Without a segment it also reports false.
func (s *space) allot(where **segment, size int64) (to *segment, offset uint32, ok bool) {
	to = *where
	if to != nil && costOf(to.size+size, to.reserved+1) > s.segmentSize {
		s.seal(where)
	}
	if *where == nil {
		return nil, 0, false
	}
	offset = uint32(to.size)
	s.used -= to.cost()
	to.size += size
	to.reserved++
	to.pending++
	s.used += to.cost()
	return to, offset, true
}

// seal seals the segment at where, if there is one.
func (s *space) seal(where **segment) {
	if *where != nil {
		s.sealed = append(s.sealed, *where)
		*where = nil
	}
}

// measure sets the room by the free bytes of the file system.
func (s *space) measure(total, free int64) {
	s.free = free
	s.room = s.roomFor(s.limits.Low.Of(total), s.limits.High.Of(total))
}

// roomFor returns how much the cache may take so that low bytes of the file system stay free, or,
// if they are not, so that high bytes become free.
func (s *space) roomFor(low, high int64) int64 {
	if low == 0 {
		return s.limits.Size
	}
	room := s.used + s.free - low
	if s.free < low {
		room = s.used + s.free - max(low, high)
	}
	least := max(s.limits.Size/16, 4*s.segmentSize)
	return min(s.limits.Size, max(room, least))
}

// HasRoom reports whether that many more bytes can be put and cause no eviction, now or soon after.
func (c *Cache) HasRoom(bytes int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.absent == nil && c.hasRoom(bytes)
}

// Short returns why background work must not use the cache now, or nil: the cache is off, is being
// loaded, or is short of space.
func (c *Cache) Short() error {
	s := c.Stats()
	if off := s.Off(); off != "" {
		return errors.New(off)
	}
	if !c.isLoaded() {
		return errors.New("the cache is being loaded, so its chunks are not all known")
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.room < c.limits.Size && c.isTight(2) {
		return errors.New("the cache's disk is short of space")
	}
	return nil
}

// measure finds out how much of the file system is free.
func (c *Cache) measure() {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.dir, &fs); err != nil {
		return // somebody may have removed the directory: the next segment makes it again
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.space.measure(int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize)
}
