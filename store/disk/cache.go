// Package disk promises a cache of plain chunks on this machine that all images
// share, that survives a restart, that stays below its limit, that gives way
// when the disk runs short, and that never gives back a byte which differs from
// what was put in. What is pinned stays.
//
// It refuses to fail a read: whatever is wrong with the disk, the answer is
// that the chunk is not here. A cache that cannot be opened is absent until it can be. It refuses to fetch, and to judge what is put in:
// the caller has verified that.
//
// Chunks are appended to segments, files of a fixed size; the segment that was
// used least recently goes when room is needed, after what is pinned in it was
// moved to another. So a chunk costs no file, no directory entry and no fsync,
// neighbours that came together lie together, and freeing is a single unlink.
// Nothing but the pins is synced: after a crash of the machine whatever did not
// reach the disk fails its checksum and is fetched again.
//
// cache.go is the path of reads and writes (reserve.go: where to). Its owner, a goroutine between Open
// and Close (owner.go), makes room before it is needed (evict.go). A disk that hangs, rather
// than fails, is left (hang.go). Risk: a read that the kernel begins although it was told not
// to wait, and for which the disk's queue has no room.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
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

// pause is how long a disk that refuses writes is left alone, and one that
// fails badReads reads in a row: such a disk may take seconds to say so.
const (
	pause    = 10 * time.Second
	badReads = 16
)

// key is the part of an ID that the index in memory holds. A record's checksums
// are salted with the whole ID, so a wrong place is found out.
type key [16]byte

func keyOf(id chunk.ID) key { return key(id[:16]) }

// Cache is the cache. It is safe for concurrent use.
type Cache struct {
	dir         string
	limits      Limits
	segmentSize int64
	lock        *os.File
	log         *slog.Logger

	wake    chan struct{} // tells the owner that there is work
	loaded  chan struct{} // closed when all that was there is known, or the owner has ended
	stop    context.CancelFunc
	stopped sync.WaitGroup

	reads, writes *guard

	clock    atomic.Int64 // counts uses: the age of a segment
	hits     atomic.Int64
	misses   atomic.Int64
	damage   atomic.Int64
	unread   atomic.Int64
	hung     atomic.Int64 // reads and writes that the disk did not answer in time
	inARow   atomic.Int64 // reads that failed since one succeeded
	blindTo  atomic.Int64 // until then nothing is read; Unix nanoseconds, 0: it is
	fails    atomic.Int64
	evicted  atomic.Int64
	scrubbed atomic.Int64
	stuck    atomic.Int64 // times that a segment could not be freed

	slow  sync.Mutex   // held by who frees or moves records, or changes pins; before mu
	yield func() int64 // guarded by slow; removes a file beside the chunks; or nil

	mu     sync.RWMutex // guards what follows
	index  index
	left   []leftover // that are not loaded yet, the last one first
	sealed []*segment
	active *segment  // takes what is put; nil before the first
	kept   *segment  // takes what is moved; nil before the first
	spare  *segment  // an empty file, for whichever is full next; or nil
	next   uint64    // number of the next segment
	used   int64     // bytes of all segments with their tables
	room   int64     // what used may be now: the limit, or less if the disk is short
	free   int64     // of the disk, as it was measured last
	absent error     // why there is none
	off    time.Time // until then the disk is not asked to take anything
	pins   []*pin    // replaced as a whole
	pinned int64     // bytes of the records that they keep

	pinFiles int64 // bytes of their own files
	beside   int64 // bytes of files beside the chunks
}

// Open opens the cache in dir, which it makes if need be. What is there and
// valid is taken over while the cache is used already: until a segment is loaded, the
// chunks in it are not here, and nothing is evicted. Only one process can hold a cache open.
func Open(dir string, limits Limits, log *slog.Logger) (*Cache, error) {
	if limits.Size < MinLimit {
		return nil, fmt.Errorf("a cache of %d bytes is too small: the least is %d MiB", limits.Size, MinLimit>>20)
	}
	return openSized(dir, limits, segmentSizeOf(limits), log)
}

func segmentSizeOf(limits Limits) int64 {
	return min(max(limits.Size/segments, 4*chunk.MaxLength), 1<<31)
}

func openSized(dir string, limits Limits, segmentSize int64, log *slog.Logger) (*Cache, error) {
	c := newCache(dir, limits, segmentSize, log)
	if err := c.open(); err != nil {
		return nil, err
	}
	c.start(c.takeOver)
	return c, nil
}

func newCache(dir string, limits Limits, segmentSize int64, log *slog.Logger) *Cache {
	return &Cache{dir: dir, limits: limits, segmentSize: segmentSize, log: log, room: limits.Size, index: indexOf(0),
		wake: make(chan struct{}, 1), loaded: make(chan struct{}),
		reads: newGuard(maxReads, readPatience), writes: newGuard(maxWrites, writePatience)}
}

// start has owner run until Close.
func (c *Cache) start(owner func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.stopped.Go(func() { owner(ctx) })
}

// takeOver is the owner of a cache that is open: it loads what is there, and goes on.
func (c *Cache) takeOver(ctx context.Context) {
	c.load(ctx)
	c.own(ctx)
}

// open takes the directory, and counts what is in it. If it fails, c is as it was.
func (c *Cache) open() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the cache: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("the cache %s is in use by another process: %w", c.dir, err)
	}
	if err := c.count(lock); err != nil {
		lock.Close()
		return err
	}
	c.measure()
	return nil
}

// Read fills dst with the bytes of the chunk from offset on, which must lie
// within the chunk, and tells whether it could.
func (c *Cache) Read(ref chunk.Ref, offset int, dst []byte) bool {
	c.mu.RLock()
	p, ok := c.index.at(keyOf(ref.ID))
	c.mu.RUnlock()
	for ok {
		if c.isBlind() || p.segment.left.Load() > 0 {
			break
		}
		err := p.segment.read(p.offset, ref, offset, dst)
		if err == nil {
			if c.inARow.Load() != 0 {
				c.inARow.Store(0)
			}
			p.segment.used.Store(c.clock.Add(1))
			c.hits.Add(1)
			return true
		}
		if err == errHangs {
			c.unanswered("read", p.segment.path)
			c.failedRead()
			break
		}
		if !errors.Is(err, os.ErrClosed) {
			c.drop(ref, p, err)
			break
		}
		before := p // evicted meanwhile: it may have been moved
		c.mu.RLock()
		p, ok = c.index.at(keyOf(ref.ID))
		c.mu.RUnlock()
		ok = ok && p != before
	}
	c.misses.Add(1)
	return false
}

// isBlind tells whether the disk is not read: it fails reads, or has not answered some.
func (c *Cache) isBlind() bool {
	return c.reads.left.Load() >= fewLeft || c.blindTo.Load() != 0 && c.isResting()
}

func (c *Cache) isResting() bool {
	until := c.blindTo.Load()
	if time.Now().UnixNano() < until {
		return true
	}
	c.blindTo.CompareAndSwap(until, 0)
	return false
}

// Has tells whether the chunk is believed to be here.
func (c *Cache) Has(id chunk.ID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.has(keyOf(id))
}

// drop forgets a record that is damaged, or that the disk does not give, unless
// it has been replaced meanwhile.
func (c *Cache) drop(ref chunk.Ref, p place, cause error) {
	c.mu.Lock()
	c.unset(keyOf(ref.ID), p)
	c.mu.Unlock()
	n := int64(0)
	if errors.Is(cause, errDamaged) || errors.Is(cause, io.ErrUnexpectedEOF) {
		n = c.damage.Add(1)
	} else {
		n = c.unread.Add(1)
		c.failedRead()
	}
	if n&(n-1) == 0 { // log 1, 2, 4, 8 …: a dying disk must not fill the log
		c.log.Warn("a cached chunk cannot be used, it will be fetched anew", "chunk", ref.ID.Short(),
			"segment", p.segment.path, "cause", cause, "so far", n)
	}
}

// failedRead has a disk left alone that fails many reads in a row, or does not answer them.
func (c *Cache) failedRead() {
	if c.inARow.Add(1)%badReads == 0 {
		c.blindTo.Store(time.Now().Add(pause).UnixNano())
	}
}

// unanswered counts an operation that the disk did not answer in time.
func (c *Cache) unanswered(what, path string) {
	n := c.hung.Add(1)
	if n&(n-1) == 0 { // as in drop
		c.log.Warn("the cache's disk does not answer, what is read is fetched", "operation", what, "path", path, "so far", n)
	}
}

// Put stores a chunk that the caller has verified, of which it keeps nothing. A disk that
// refuses it, or does not answer, is counted and otherwise ignored.
func (c *Cache) Put(ref chunk.Ref, plain []byte) {
	if len(plain) != int(ref.Length) || c.Has(ref.ID) || c.isOff() {
		return
	}
	buffer := buffers.Get().(*[]byte)
	record := appendRecord((*buffer)[:0], ref.ID, plain)
	err := c.writes.do(func() {
		c.store(ref, record)
		buffers.Put(buffer)
	}, new(atomic.Int64))
	if err != nil {
		c.unanswered("write", c.dir)
		c.rest()
	}
}

// store stores a chunk's record.
func (c *Cache) store(ref chunk.Ref, record []byte) {
	s, offset, err := c.reserve(int64(len(record)))
	if err == errNoRoom && !c.isLoaded() { // nothing goes yet
		return
	}
	if err != nil {
		c.writeFailed(err)
		return
	}
	_, err = s.file.WriteAt(record, int64(offset))
	c.mu.Lock()
	s.pending--
	if err == nil && !s.gone {
		c.set(keyOf(ref.ID), place{s, offset})
		s.add(ref, offset)
	}
	c.mu.Unlock()
	if err != nil {
		c.writeFailed(err)
	}
}

// set puts a place into the index, and unset takes it out if it is still the
// one. The caller holds mu.
func (c *Cache) set(k key, p place) {
	if old, ok := c.index.at(k); ok {
		c.dead(old.segment)
	}
	c.index.set(k, p)
	p.segment.live++
}

func (c *Cache) unset(k key, p place) bool {
	if !c.index.lies(k, p) {
		return false
	}
	c.index.remove(k)
	c.dead(p.segment)
	return true
}

func (c *Cache) dead(s *segment) {
	s.changed++
	if s.live--; s.live == 0 {
		c.call()
	}
}

func (c *Cache) isOff() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.absent != nil || c.writes.left.Load() > 0 || !c.off.IsZero() && time.Now().Before(c.off)
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
	if full && c.evictNow() {
		return
	}
	c.rest()
}

// rest has the disk left alone for a while by what is put in.
func (c *Cache) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = time.Now().Add(pause)
}

// Close writes what the next Open needs to start quickly. It ends the loading. A disk that
// does not answer is an error after ten seconds: what waits for it stays behind, and holds
// the cache's lock until then, or until the process ends.
func (c *Cache) Close() error {
	c.stop()
	closed := make(chan error, 1)
	go func() { closed <- c.finish() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closePatience):
		return fmt.Errorf("close the cache %s: %w; the next start reads what was written", c.dir, errHangs)
	}
}

// finish is Close once the owner was told to stop.
func (c *Cache) finish() error {
	c.stopped.Wait()
	if c.isAbsent() != nil {
		return nil
	}
	c.slow.Lock()
	defer c.slow.Unlock()
	c.mu.Lock()
	c.seal(&c.active)
	c.seal(&c.kept)
	c.mu.Unlock()
	c.writeTables()
	c.dropSpare()
	c.mu.Lock()
	sealed := c.sealed
	for _, s := range sealed { // a write that was left behind does not get into the index any more
		s.gone = true
	}
	c.sealed, c.index = nil, indexOf(0)
	c.mu.Unlock()
	c.keepAges(sealed)
	for _, s := range sealed {
		s.file.Close()
	}
	return c.lock.Close()
}
