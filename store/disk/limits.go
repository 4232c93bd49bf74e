package disk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Limits say how much of the disk the cache takes.
type Limits struct {
	Size int64 // the most that it takes, in bytes
	// When less than Low is free on its file system, the cache gives way until
	// High is, or a sixteenth of Size is left of it. By itself it never fills the
	// disk beyond Low. Zero: it looks at its own size alone.
	Low, High Space
}

// Space is a part of a file system, as a share or in bytes.
type Space struct {
	Percent float64
	Bytes   int64
}

// Of returns the part of a file system of that many bytes.
func (s Space) Of(total int64) int64 { return s.Bytes + int64(s.Percent/100*float64(total)) }

// Stats are a cache's figures; what is counted is since it was opened.
type Stats struct {
	Limit      int64     `json:"limitBytes"`
	Room       int64     `json:"roomBytes"` // the limit, or less while the disk is short
	Used       int64     `json:"usedBytes"` // on disk
	Free       int64     `json:"freeBytes"` // of its file system, for others than root
	Pinned     int64     `json:"pinnedBytes"`
	Beside     int64     `json:"localDeviceBytes"` // of it, files beside the chunks
	Chunks     int64     `json:"chunks"`
	Loading    int64     `json:"loadingBytes"` // of Used, segments that are not loaded yet: their chunks are not here
	Hits       int64     `json:"hits"`
	Misses     int64     `json:"misses"`
	Evicted    int64     `json:"evictedBytes"` // of the disk
	Damaged    int64     `json:"damaged"`      // records whose checksum was wrong, or that were cut
	Unread     int64     `json:"failedReads"`  // records that the disk did not give
	Failed     int64     `json:"failedWrites"` // chunks that the disk did not take
	Hung       int64     `json:"unanswered"`   // reads and writes that it did not answer in time
	Scrubbed   int64     `json:"scrubbedBytes"`
	OffUntil   time.Time `json:"offUntil,omitzero"`        // it refused writes, and is not asked until then
	NoReads    time.Time `json:"noReadsUntil,omitzero"`    // it failed many reads, and is not asked until then
	ReadsHang  time.Time `json:"readsHangSince,omitzero"`  // it has not answered several reads since, and is not read until it does
	WritesHang time.Time `json:"writesHangSince,omitzero"` // it has not answered a write since
	Absent     string    `json:"absent,omitempty"`         // why there is no cache
}

// Off says why the disk is not asked, for reads or for writes, or nothing if it is.
func (s *Stats) Off() string {
	switch {
	case s.Absent != "":
		return "there is no cache, it is tried again every minute: " + s.Absent
	case !s.ReadsHang.IsZero():
		return "its disk does not answer reads: nothing is read from it since " + s.ReadsHang.Local().Format(time.TimeOnly)
	case !s.WritesHang.IsZero():
		return "its disk does not answer writes: nothing is put in since " + s.WritesHang.Local().Format(time.TimeOnly)
	case !s.NoReads.IsZero():
		return "its disk fails reads: nothing is read from it until " + s.NoReads.Local().Format(time.TimeOnly)
	case !s.OffUntil.IsZero():
		return "its disk refuses writes: nothing is put in until " + s.OffUntil.Local().Format(time.TimeOnly)
	}
	return ""
}

// Stats returns the figures.
func (c *Cache) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := Stats{Limit: c.limits.Size, Room: c.room, Used: c.used, Free: c.free, Chunks: c.index.len(), Loading: bytesOf(c.left),
		Hits: c.hits.Load(), Misses: c.misses.Load(), Evicted: c.evicted.Load(), Damaged: c.damage.Load(),
		Unread: c.unread.Load(), Failed: c.fails.Load(), Hung: c.hung.Load(), Scrubbed: c.scrubbed.Load(), Pinned: c.pinned, Beside: c.beside}
	now := time.Now()
	if c.off.After(now) {
		s.OffUntil = c.off
	}
	if blind := time.Unix(0, c.blindTo.Load()); blind.After(now) {
		s.NoReads = blind
	}
	s.ReadsHang, s.WritesHang = c.reads.hangsSince(fewLeft), c.writes.hangsSince(1)
	if c.absent != nil {
		s.Absent = c.absent.Error()
	}
	return s
}

// Short says why the disk has no room for what nobody waits for: it is not asked, or
// gives way to others.
func (c *Cache) Short() error {
	s := c.Stats()
	if off := s.Off(); off != "" {
		return errors.New(off)
	}
	if !c.isLoaded() {
		return errors.New("the cache is loaded, and what is in it is not known yet")
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.room < c.limits.Size && c.isTight(2) {
		return errors.New("the cache's disk is short of space")
	}
	return nil
}

// measure looks at how much of the disk is free, and says by it how much the
// cache may take now.
func (c *Cache) measure() {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.dir, &fs); err != nil {
		return // it may have been removed: the next segment makes it again
	}
	total, free := int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = free
	c.room = c.roomFor(c.limits.Low.Of(total), c.limits.High.Of(total))
}

// roomFor returns how much the cache may take for low bytes of the disk to stay
// free, or, if they are not, for high to become so. The caller holds mu.
func (c *Cache) roomFor(low, high int64) int64 {
	if low == 0 {
		return c.limits.Size
	}
	room := c.used + c.free - low
	if c.free < low {
		room = c.used + c.free - max(low, high)
	}
	least := max(c.limits.Size/16, 4*c.segmentSize)
	return min(c.limits.Size, max(room, least))
}
