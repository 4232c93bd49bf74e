package disk

import (
	"context"
	"encoding/hex"
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
	"lighter/store"
)

var _ store.Cache = (*Cache)(nil)

// key is the part of an ID that the index in memory holds. A record's checksums are salted with
// the whole ID, so a record of another chunk with the same key is found to be wrong.
type key [16]byte

func keyOf(id chunk.ID) key { return key(id[:16]) }

// Cache is the cache. It is safe for concurrent use.
type Cache struct {
	*External

	dir  string
	lock *os.File
	log  *slog.Logger

	wake    chan struct{} // wakes the owner
	loaded  chan struct{} // closed when all that was on disk is known, or the owner has ended
	stop    context.CancelFunc
	stopped sync.WaitGroup

	reads, writes *breaker

	clock atomic.Int64 // counts uses; its value at a segment's last use tells the segment's age
	counters

	slow sync.Mutex // held while records are freed or moved, or pins or segments change; locked before mu
	next uint64     // number of the next segment; guarded by slow

	mu        sync.RWMutex // guards what follows
	space                  // except limits and segmentSize
	index     index
	leftovers []leftover // segments that are not loaded yet; the last one is loaded first
	absent    error      // why there is no cache; nil: there is one
	pins      pins       // never changed, only replaced
	pinned    int64      // bytes of the records of all pinned chunks, cached or not
	files     int64      // bytes of the pins' own files
}

// Open opens the cache in dir, which it makes if need be. Existing segments are loaded while the
// cache is in use already: the chunks of a segment that is not loaded yet are missing, and nothing
// is evicted before all segments are loaded. Only one process can have a cache open.
func Open(dir string, limits Limits, log *slog.Logger) (*Cache, error) {
	if limits.Size < MinLimit {
		return nil, fmt.Errorf("a cache of %d bytes is too small: the least is %d MiB", limits.Size, MinLimit>>20)
	}
	c := newCache(dir, limits, log)
	if err := c.open(); err != nil {
		return nil, err
	}
	c.start(c.takeOver)
	return c, nil
}

func newCache(dir string, limits Limits, log *slog.Logger) *Cache {
	c := &Cache{dir: dir, log: log, space: newSpace(limits), index: indexOf(0),
		wake: make(chan struct{}, 1), loaded: make(chan struct{}), reads: newReads(), writes: newWrites()}
	c.External = &External{cache: c}
	return c
}

// start runs owner until Close.
func (c *Cache) start(owner func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.stopped.Go(func() { owner(ctx) })
}

// takeOver is the owner of an open cache: it loads the existing segments, and then makes room as
// needed.
func (c *Cache) takeOver(ctx context.Context) {
	(&loader{Cache: c}).run(ctx)
	c.own(ctx)
}

// open locks the directory and counts what is in it. If it fails, c is unchanged.
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

// Read fills dst with the bytes of the chunk from offset on, which must lie within the chunk, and
// reports whether it could.
func (c *Cache) Read(ref chunk.Ref, offset int, dst []byte) bool {
	c.mu.RLock()
	p, ok := c.index.at(keyOf(ref.ID))
	c.mu.RUnlock()
	for ok && !c.reads.isOpen() && p.segment.abandoned.Load() == 0 {
		err := p.segment.read(p.offset, ref, offset, dst)
		if err == nil {
			c.reads.succeeded()
			p.segment.used.Store(c.clock.Add(1))
			c.hits.Add(1)
			return true
		}
		if err == errHangs {
			c.unanswered("read", p.segment.path)
			c.reads.failed()
			break
		}
		if !errors.Is(err, os.ErrClosed) {
			c.drop(keyOf(ref.ID), p, err)
			break
		}
		before := p // evicted meanwhile: the record may have moved
		c.mu.RLock()
		p, ok = c.index.at(keyOf(ref.ID))
		c.mu.RUnlock()
		ok = ok && p != before
	}
	c.misses.Add(1)
	return false
}

// Has reports whether the chunk is believed to be cached.
func (c *Cache) Has(id chunk.ID) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.has(keyOf(id))
}

// drop forgets a record that is damaged or cannot be read, unless it was replaced meanwhile.
func (c *Cache) drop(k key, p place, cause error) {
	c.mu.Lock()
	c.index.unset(k, p)
	c.mu.Unlock()
	faults := &c.damaged
	if !errors.Is(cause, errDamaged) && !errors.Is(cause, io.ErrUnexpectedEOF) {
		faults = &c.unread
		c.reads.failed()
	}
	faults.warn(c.log, "cached chunk unusable, will be fetched again",
		"chunk", hex.EncodeToString(k[:6]), "segment", p.segment.path, "err", cause)
}

// unanswered counts an operation that the disk did not answer in time.
func (c *Cache) unanswered(operation, path string) {
	c.hung.warn(c.log, "cache disk does not answer, chunks are fetched", "operation", operation, "path", path)
}

// Put stores a chunk that the caller has verified. It does not keep plain. If the disk fails or
// hangs, the chunk is not stored.
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
		c.writes.failed()
	}
}

// store stores a chunk's record.
func (c *Cache) store(ref chunk.Ref, record []byte) {
	s, offset, err := c.reserve(int64(len(record)))
	if err == errNoRoom && !c.isLoaded() { // nothing is evicted yet
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
		c.index.set(keyOf(ref.ID), place{s, offset})
		s.add(ref, offset)
	}
	c.mu.Unlock()
	if err != nil {
		c.writeFailed(err)
	}
}

// isOff reports whether nothing can be written.
func (c *Cache) isOff() bool { return c.writes.isOpen() || c.isAbsent() != nil }

// writeFailed evicts something if the disk is full. If that fails, or the disk has another error,
// writes pause; reads go on.
func (c *Cache) writeFailed(err error) {
	if errors.Is(err, os.ErrClosed) { // evicted meanwhile
		return
	}
	c.failed.warn(c.log, "cache write failed, the chunk is not stored", "dir", c.dir, "err", err)
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if !full || !c.evictNow() {
		c.writes.failed()
	}
}

// Close ends the loading and writes what the next Open needs to start quickly. If the disk does not
// answer for ten seconds, Close returns an error. Operations that still wait for the disk then hold
// the cache's lock until they end, or until the process ends.
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

// finish does the rest of Close, after the owner was told to stop.
func (c *Cache) finish() error {
	c.stopped.Wait()
	if c.isAbsent() != nil {
		return nil
	}
	c.slow.Lock()
	defer c.slow.Unlock()
	c.sealAll()
	c.writeTables()
	c.mu.Lock()
	sealed := c.sealed
	for _, s := range sealed { // an abandoned write must not get into the index any more
		s.gone = true
	}
	c.sealed, c.index = nil, indexOf(0)
	c.mu.Unlock()
	c.saveAges(sealed)
	for _, s := range sealed {
		s.file.Close()
	}
	return c.lock.Close()
}
