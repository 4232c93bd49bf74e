package disk

import (
	"cmp"
	"fmt"
	"slices"

	"lighter/format/chunk"
)

// Freed says what went.
type Freed struct {
	Bytes  int64 `json:"freedBytes"` // of the disk
	Chunks int64 `json:"freedChunks"`
	Kept   int64 `json:"keptBytes"` // of chunks that went, but in segments that stay until they are old
}

func (f *Freed) add(other Freed) {
	f.Bytes += other.Bytes
	f.Chunks += other.Chunks
	f.Kept += other.Kept
}

// evictNow frees the oldest segment, and tells whether it could.
func (c *Cache) evictNow() bool {
	c.slow.Lock()
	defer c.slow.Unlock()
	return c.evictOldest()
}

// evictOldest frees the sealed segment that was used least recently of those in
// which little is pinned, and tells whether it could. What the disk does not let
// go of stays. Before any, what is beside the chunks goes, as far as nobody uses it,
// unless it is segments of which there are too many. The caller holds slow.
//
// There is always room to move what is pinned, unless the limit was larger when the
// pins or the segments were made: then the limit comes before the pins.
//
// While the cache is loaded nothing goes: what is the oldest is not known.
func (c *Cache) evictOldest() bool {
	if !c.isLoaded() {
		return false
	}
	many := c.areMany()
	if !many && c.giveWay() > 0 {
		return true
	}
	var stuck *segment
	for _, s := range c.byAge() {
		pinned := c.pinnedIn(s)
		small := many && s.cost() < c.segmentSize/2 // to be made one with others
		if 4*pinned > 3*s.cost() && !small {
			continue
		}
		if pinned > 0 && !c.canMove(pinned) {
			stuck = cmp.Or(stuck, s)
			continue
		}
		if _, ok := c.evict(s, c.isPinned); ok {
			return true
		}
	}
	if stuck == nil {
		return false
	}
	_, ok := c.evict(stuck, nil)
	return ok
}

// canMove tells whether there is room for so many bytes of records elsewhere.
func (c *Cache) canMove(size int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	files := size/c.segmentSize + 2
	return c.fits(size + files*2*onDisk(1))
}

// evict moves those records of a sealed segment elsewhere that keep wants (nil:
// none), and frees it. Its readers go on. The caller holds slow, so nobody else
// frees it.
func (c *Cache) evict(s *segment, keep func(key) bool) (freed Freed, ok bool) {
	c.mu.RLock()
	records := s.records
	c.mu.RUnlock()
	moved := int64(0)
	for _, r := range records {
		if keep == nil || !keep(r.key) || !c.lies(r.key, place{s, r.offset}) {
			continue
		}
		if err := c.move(s, r); err != nil {
			c.stays(s, fmt.Errorf("move what is to be kept out of it: %w", err))
			return freed, false
		}
		moved += recordSize(r.length) + tableEntry
	}
	if err := s.unlink(); err != nil { // it is open: who reads it now goes on
		c.stays(s, err)
		return freed, false
	}
	freed = Freed{Bytes: max(0, s.cost()-moved), Chunks: c.forget(s)}
	c.evicted.Add(freed.Bytes)
	if err := s.file.Close(); err != nil {
		c.log.Warn("close a cache segment", "cause", err)
	}
	return freed, true
}

// stays says that a segment cannot be freed.
func (c *Cache) stays(s *segment, cause error) {
	n := c.stuck.Add(1)
	if n&(n-1) == 0 { // as in drop
		c.log.Warn("a cache segment cannot be freed", "segment", s.path, "cause", cause, "so far", n)
	}
}

// lies tells whether a chunk lies there.
func (c *Cache) lies(k key, p place) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.lies(k, p)
}

// forget takes a segment out of the books, and counts the chunks that went with
// it.
func (c *Cache) forget(s *segment) (chunks int64) {
	c.mu.Lock()
	c.sealed = slices.DeleteFunc(c.sealed, func(other *segment) bool { return other == s })
	c.used -= s.cost()
	s.gone = true
	c.mu.Unlock()
	c.visit(s, func(r record) {
		c.index.remove(r.key)
		chunks++
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.exclude(s)
	return chunks
}

// visit calls fn, which holds mu, for each record of a segment that the index points
// to. Readers get their turns meanwhile: there may be half a million.
func (c *Cache) visit(s *segment, fn func(record)) {
	c.mu.RLock()
	records := s.records
	c.mu.RUnlock()
	for some := range slices.Chunk(records, 256) {
		c.mu.Lock()
		for _, r := range some {
			if c.index.lies(r.key, place{s, r.offset}) {
				fn(r)
			}
		}
		c.mu.Unlock()
	}
}

// move copies a record of a segment, which it verifies, to where it can stay. A
// damaged one is dropped.
func (c *Cache) move(s *segment, r record) error {
	buffer := buffers.Get().(*[]byte)
	b := (*buffer)[:recordSize(r.length)]
	id, err := s.readRecord(r, b)
	if err == errHangs { // the buffer is the read's that was left behind
		return err
	}
	defer buffers.Put(buffer)
	ref := chunk.Ref{ID: id, Length: r.length}
	from := place{s, r.offset}
	if err != nil {
		c.dropRecord(r, from, err)
		return nil
	}
	to, offset, err := c.reserveKept(int64(len(b)))
	if err == errNoSpare {
		if err = c.prepare(); err == nil {
			to, offset, err = c.reserveKept(int64(len(b)))
		}
	}
	if err != nil {
		return err
	}
	_, err = to.file.WriteAt(b, int64(offset))
	c.mu.Lock()
	defer c.mu.Unlock()
	to.pending--
	if err != nil {
		c.fails.Add(1)
		return err
	}
	if c.index.lies(r.key, from) {
		c.set(r.key, place{to, offset})
		to.add(ref, offset)
		to.used.Store(max(to.used.Load(), s.used.Load()))
	}
	return nil
}

// dropRecord is drop for who does not know the chunk's ID.
func (c *Cache) dropRecord(r record, p place, cause error) {
	var id chunk.ID
	copy(id[:], r.key[:])
	c.drop(chunk.Ref{ID: id, Length: r.length}, p, cause)
}

// reserveKept is reserve for what is moved. Put leaves a segment's worth of room
// for it; and it goes by the limit, as what it comes from is about to be freed.
func (c *Cache) reserveKept(size int64) (*segment, uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sealFull(&c.kept, size)
	if !c.fits(onDisk(size) + onDisk(tableEntry)) {
		return nil, 0, fmt.Errorf("no room within the cache's limit of %d bytes", c.limits.Size)
	}
	if c.kept == nil {
		if err := c.begin(&c.kept); err != nil {
			return nil, 0, err
		}
	}
	return c.kept, c.take(c.kept, size), nil
}

// Prune empties the cache of all that is not pinned, as far as the disk lets it.
func (c *Cache) Prune() (freed Freed) {
	if c.isAbsent() != nil {
		return freed
	}
	<-c.loaded
	c.slow.Lock()
	for n := c.giveWay(); n > 0; n = c.giveWay() {
		freed.Bytes += n
	}
	c.slow.Unlock()
	c.sealAll()
	for _, s := range c.byAge() {
		c.slow.Lock()
		pinned := c.pinnedIn(s)
		c.mu.RLock()
		gone, full := s.gone, 16*pinned > 15*s.cost()
		c.mu.RUnlock()
		switch {
		case gone:
		case full: // to move all of it would free next to nothing
			f := Freed{}
			c.forgetIn(s, func(k key) bool { return !c.isPinned(k) }, &f)
			freed.add(f)
		default:
			f, _ := c.evict(s, c.isPinned)
			freed.add(f)
		}
		c.slow.Unlock()
	}
	return freed
}

// sealAll ends the segments that are written, so that they can be freed.
func (c *Cache) sealAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seal(&c.active)
	c.seal(&c.kept)
}

// forgetIn takes those records of a segment out of the index that which wants.
func (c *Cache) forgetIn(s *segment, which func(key) bool, freed *Freed) {
	c.visit(s, func(r record) {
		if which(r.key) && c.unset(r.key, place{s, r.offset}) {
			freed.Chunks++
			freed.Kept += recordSize(r.length) + tableEntry
		}
	})
}

// Evict forgets those of the chunks that are here and not pinned, and frees
// their space: at once where they are a quarter of a segment or more, else when
// that is old.
func (c *Cache) Evict(chunks *Set) (freed Freed) {
	if c.isAbsent() != nil {
		return freed
	}
	<-c.loaded
	chunks.sort()
	c.sealAll()
	for _, s := range c.byAge() {
		c.slow.Lock()
		f := Freed{}
		c.forgetIn(s, func(k key) bool { return chunks.has(k) && !c.isPinned(k) }, &f)
		if f.Chunks > 0 && c.deadIn(s)*4 >= s.size {
			if f2, ok := c.evict(s, func(key) bool { return true }); ok {
				f.Bytes, f.Kept = f2.Bytes, 0
			}
		}
		freed.add(f)
		c.slow.Unlock()
	}
	return freed
}

// deadIn returns how many bytes of a segment are of no use any more.
func (c *Cache) deadIn(s *segment) int64 {
	dead := s.size
	c.visit(s, func(r record) { dead -= recordSize(r.length) })
	return dead
}
