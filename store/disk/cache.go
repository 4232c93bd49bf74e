// Package disk promises a cache of plain chunks on this machine that all images
// share, that survives a restart, that stays below its limit, and that never
// gives back a byte which differs from what was put in.
//
// It refuses to fail a read: whatever is wrong with the disk, the answer is
// that the chunk is not here. It refuses to fetch, and to judge what is put in:
// the caller has verified that.
//
// Chunks are appended to segments, files of a fixed size; the segment that was
// used least recently goes when room is needed. So a chunk costs no file, no
// directory entry and no fsync, neighbours that came together lie together, and
// freeing is a single unlink. Nothing is synced: after a crash of the machine
// whatever did not reach the disk fails its checksum and is fetched again.
package disk

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// MinLimit is the smallest limit that Open takes, in bytes.
const MinLimit = 64 << 20

// segments is how many segments a full cache has: what is freed at once is
// under a hundredth of it, and the open files stay few.
const segments = 128

// writePause is how long a disk that refuses writes is left alone.
const writePause = 10 * time.Second

// key is the part of an ID that the index in memory holds. A record's checksums
// are salted with the whole ID, so a wrong place is found out.
type key [16]byte

func keyOf(id chunk.ID) key { return key(id[:16]) }

// place says where a chunk lies.
type place struct {
	segment *segment
	offset  uint32 // of its record, in bytes
}

// Cache is the cache. It is safe for concurrent use.
type Cache struct {
	dir         string
	limit       int64
	segmentSize int64
	lock        *os.File
	log         *slog.Logger

	clock  atomic.Int64 // counts uses: the age of a segment
	hits   atomic.Int64
	misses atomic.Int64
	damage atomic.Int64
	fails  atomic.Int64

	mu     sync.RWMutex // guards what follows
	index  map[key]place
	sealed []*segment
	active *segment  // takes what is put; nil before the first
	next   uint64    // number of the next segment
	used   int64     // bytes of all segments with their tables
	off    time.Time // until then the disk is not asked to take anything
}

// Stats are a cache's figures since it was opened.
type Stats struct {
	Limit   int64 `json:"limitBytes"`
	Used    int64 `json:"usedBytes"` // on disk
	Chunks  int64 `json:"chunks"`
	Hits    int64 `json:"hits"`
	Misses  int64 `json:"misses"`
	Damaged int64 `json:"damaged"`      // records whose checksum was wrong, or that were cut
	Failed  int64 `json:"failedWrites"` // chunks that the disk did not take
}

// Open opens the cache in dir, which it makes if need be, with a limit in
// bytes. What is there and valid is taken over. Only one process can hold a
// cache open.
func Open(dir string, limit int64, log *slog.Logger) (*Cache, error) {
	if limit < MinLimit {
		return nil, fmt.Errorf("a cache of %d bytes is too small: the least is %d MiB", limit, MinLimit>>20)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the cache directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("the cache %s is in use by another process: %w", dir, err)
	}
	c := &Cache{dir: dir, limit: limit, segmentSize: min(max(limit/segments, 4*chunk.MaxLength), 1<<31),
		lock: lock, log: log, index: map[key]place{}}
	if err := c.load(); err != nil {
		lock.Close()
		return nil, err
	}
	return c, nil
}

// Read fills dst with the bytes of the chunk from offset on, which must lie
// within the chunk, and tells whether it could.
func (c *Cache) Read(ref chunk.Ref, offset int, dst []byte) bool {
	c.mu.RLock()
	p, ok := c.index[keyOf(ref.ID)]
	c.mu.RUnlock()
	if !ok {
		c.misses.Add(1)
		return false
	}
	if err := p.segment.read(p.offset, ref, offset, dst); err != nil {
		c.misses.Add(1)
		if !errors.Is(err, os.ErrClosed) { // evicted meanwhile: not damage
			c.drop(ref, p, err)
		}
		return false
	}
	p.segment.used.Store(c.clock.Add(1))
	c.hits.Add(1)
	return true
}

// Has tells whether the chunk is believed to be here.
func (c *Cache) Has(id chunk.ID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, ok := c.index[keyOf(id)]
	return ok
}

// drop forgets a record that turned out to be damaged, unless it has been
// replaced meanwhile.
func (c *Cache) drop(ref chunk.Ref, p place, cause error) {
	c.mu.Lock()
	if c.index[keyOf(ref.ID)] == p {
		delete(c.index, keyOf(ref.ID))
	}
	c.mu.Unlock()
	if n := c.damage.Add(1); n&(n-1) == 0 { // log 1, 2, 4, 8 …: a dying disk must not fill the log
		c.log.Warn("cached chunk is damaged, it will be fetched anew", "chunk", ref.ID.Short(),
			"segment", p.segment.path, "cause", cause, "damaged", n)
	}
}

// Put stores a chunk that the caller has verified. A disk that refuses it is
// counted and otherwise ignored.
func (c *Cache) Put(ref chunk.Ref, plain []byte) {
	if len(plain) != int(ref.Length) || c.Has(ref.ID) || c.isOff() {
		return
	}
	segment, offset, err := c.reserve(recordSize(ref.Length))
	if err == nil {
		err = segment.write(offset, ref.ID, plain)
	}
	if err != nil {
		c.writeFailed(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if segment.gone {
		return
	}
	segment.add(ref, offset)
	c.index[keyOf(ref.ID)] = place{segment, offset}
}

func (c *Cache) isOff() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return time.Now().Before(c.off)
}

// writeFailed makes room if that is what the disk lacks. Otherwise the disk is
// left alone for a while, and what can be read of it stays.
func (c *Cache) writeFailed(err error) {
	if errors.Is(err, os.ErrClosed) { // evicted meanwhile
		return
	}
	n := c.fails.Add(1)
	if n&(n-1) == 0 {
		c.log.Warn("the cache cannot be written, reads go on without it", "dir", c.dir, "cause", err, "failed", n)
	}
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if full && c.evictOldest() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = time.Now().Add(writePause)
}

var errNoRoom = errors.New("nothing in the cache can be evicted")

// reserve finds room for size bytes in the active segment, starting another
// and evicting old ones as needed.
func (c *Cache) reserve(size int64) (*segment, uint32, error) {
	for {
		segment, offset, sealed, err := c.tryReserve(size)
		if sealed != nil {
			c.writeTable(sealed)
		}
		if err != errNoRoom {
			return segment, offset, err
		}
		if !c.evictOldest() {
			return nil, 0, err
		}
	}
}

// tryReserve is reserve without what takes long: it returns a segment that wants
// its table, and errNoRoom if something has to go first.
func (c *Cache) tryReserve(size int64) (_ *segment, offset uint32, sealed *segment, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active != nil && c.active.cost()+size+tableEntry > c.segmentSize {
		sealed = c.seal()
	}
	if c.active == nil {
		if c.used+c.segmentSize > c.limit {
			return nil, 0, sealed, errNoRoom
		}
		s, err := createSegment(c.dir, c.next)
		if err != nil {
			return nil, 0, sealed, err
		}
		c.next++
		s.used.Store(c.clock.Add(1))
		c.active = s
		c.used += s.cost()
	}
	offset = uint32(c.active.size)
	c.used -= c.active.cost()
	c.active.size += size
	c.active.reserved++
	c.used += c.active.cost()
	return c.active, offset, sealed, nil
}

// seal ends the active segment and returns it. The caller holds mu.
func (c *Cache) seal() *segment {
	s := c.active
	if s != nil {
		c.sealed = append(c.sealed, s)
		c.active = nil
	}
	return s
}

func (c *Cache) writeTable(s *segment) {
	c.mu.Lock()
	records, ids := s.records, s.ids
	s.ids = nil // what is added from now on will be missing from the table, and lost at a restart
	c.mu.Unlock()
	if err := s.writeTable(records, ids); err != nil {
		c.log.Warn("write the table of a cache segment; the next start will scan it", "cause", err)
	}
}

// evictOldest frees the sealed segment that was used least recently, and tells
// whether it could. What the disk does not let go of stays.
func (c *Cache) evictOldest() bool {
	c.mu.Lock()
	var s *segment
	for _, other := range c.sealed {
		if !other.leaving && (s == nil || other.used.Load() < s.used.Load()) {
			s = other
		}
	}
	if s != nil {
		s.leaving = true
	}
	c.mu.Unlock()
	if s == nil {
		return false
	}
	err := s.unlink() // it is open: who reads it now goes on
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.log.Warn("a cache segment cannot be removed", "cause", err)
		s.leaving = false
		return false
	}
	c.forget(s)
	if err := s.file.Close(); err != nil {
		c.log.Warn("close a cache segment", "cause", err)
	}
	return true
}

// forget takes a segment out of the books. The caller holds mu.
func (c *Cache) forget(s *segment) {
	c.sealed = slices.DeleteFunc(c.sealed, func(other *segment) bool { return other == s })
	for _, r := range s.records {
		if c.index[r.key].segment == s {
			delete(c.index, r.key)
		}
	}
	c.used -= s.cost()
	s.gone = true
}

// Prune empties the cache, as far as the disk lets it.
func (c *Cache) Prune() {
	c.mu.Lock()
	c.seal()
	c.mu.Unlock()
	for c.evictOldest() {
	}
}

// Stats returns the figures.
func (c *Cache) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return Stats{Limit: c.limit, Used: c.used, Chunks: int64(len(c.index)), Hits: c.hits.Load(),
		Misses: c.misses.Load(), Damaged: c.damage.Load(), Failed: c.fails.Load()}
}

// Close writes what the next Open needs to start quickly.
func (c *Cache) Close() error {
	c.mu.Lock()
	sealed := c.seal()
	c.mu.Unlock()
	if sealed != nil {
		c.writeTable(sealed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepAges()
	for _, s := range c.sealed {
		s.file.Close()
	}
	c.sealed = nil
	clear(c.index)
	return c.lock.Close()
}

// keepAges has the files' times say in which order the segments were used: the
// next Open goes by them. The caller holds mu.
func (c *Cache) keepAges() {
	slices.SortFunc(c.sealed, func(a, b *segment) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	now := time.Now()
	for i, s := range c.sealed {
		at := now.Add(time.Duration(i-len(c.sealed)) * time.Millisecond)
		if err := os.Chtimes(s.path+".segment", at, at); err != nil {
			c.log.Warn("keep the age of a cache segment", "cause", err)
		}
	}
}
