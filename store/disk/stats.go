package disk

import (
	"sync/atomic"
	"time"
)

// Stats are a cache's current figures, and counters since it was opened.
type Stats struct {
	Limit      int64     `json:"limitBytes"`
	Room       int64     `json:"roomBytes"` // the limit, or less while the disk is short
	Used       int64     `json:"usedBytes"` // of the disk
	Free       int64     `json:"freeBytes"` // of its file system, for users other than root
	Pinned     int64     `json:"pinnedBytes"`
	External   int64     `json:"localDeviceBytes"` // of Used, external files: local devices
	Chunks     int64     `json:"chunks"`
	Loading    int64     `json:"loadingBytes"` // of Used, segments whose chunks are not known yet
	Hits       int64     `json:"hits"`
	Misses     int64     `json:"misses"`
	Evicted    int64     `json:"evictedBytes"`             // of the disk
	Damaged    int64     `json:"damaged"`                  // records with a wrong checksum, or cut off
	Unread     int64     `json:"failedReads"`              // records that the disk failed to read
	Failed     int64     `json:"failedWrites"`             // chunks that the disk failed to write
	Hung       int64     `json:"unanswered"`               // abandoned reads and writes
	Scrubbed   int64     `json:"scrubbedBytes"`            // verified by Scrub
	OffUntil   time.Time `json:"offUntil,omitzero"`        // writes failed; no write until then
	NoReads    time.Time `json:"noReadsUntil,omitzero"`    // many reads failed; no read until then
	ReadsHang  time.Time `json:"readsHangSince,omitzero"`  // several reads hang; no read until they end
	WritesHang time.Time `json:"writesHangSince,omitzero"` // a write hangs; no write until it ends
	Absent     string    `json:"absent,omitempty"`         // why there is no cache
}

// counters are the counters in Stats, and one that only the log reports.
type counters struct {
	hits, misses, evicted, scrubbed atomic.Int64

	damaged, unread, failed, hung tally
	stuck                         tally // segments that could not be freed
}

// Off returns why the cache does not use its disk, for reads or for writes, or "" if it does.
func (s *Stats) Off() string {
	switch {
	case s.Absent != "":
		return "there is no cache; the node tries to open it every minute: " + s.Absent
	case !s.ReadsHang.IsZero():
		return "its disk does not answer reads: nothing has been read from it since " +
			s.ReadsHang.Local().Format(time.TimeOnly)
	case !s.WritesHang.IsZero():
		return "its disk does not answer writes: nothing has been stored since " +
			s.WritesHang.Local().Format(time.TimeOnly)
	case !s.NoReads.IsZero():
		return "its disk fails reads: nothing is read from it until " + s.NoReads.Local().Format(time.TimeOnly)
	case !s.OffUntil.IsZero():
		return "its disk refuses writes: nothing is stored until " + s.OffUntil.Local().Format(time.TimeOnly)
	}
	return ""
}

// Stats returns the figures.
func (c *Cache) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := Stats{
		Limit: c.limits.Size, Room: c.room, Used: c.used, Free: c.free,
		Pinned: c.pinned, External: c.External.bytes, Chunks: c.index.len(), Loading: bytesOf(c.leftovers),
		Hits: c.hits.Load(), Misses: c.misses.Load(), Evicted: c.evicted.Load(), Scrubbed: c.scrubbed.Load(),
		Damaged: c.damaged.Load(), Unread: c.unread.Load(), Failed: c.failed.Load(), Hung: c.hung.Load(),
		OffUntil: c.writes.openUntil(), NoReads: c.reads.openUntil(),
		ReadsHang: c.reads.hangsSince(), WritesHang: c.writes.hangsSince(),
	}
	if c.absent != nil {
		s.Absent = c.absent.Error()
	}
	return s
}
