package disk

import (
	"cmp"
	"fmt"
	"slices"

	"lighter/format/chunk"
)

// Freed is the result of an eviction.
type Freed struct {
	Bytes  int64 `json:"freedBytes"` // of the disk
	Chunks int64 `json:"freedChunks"`
	Kept   int64 `json:"keptBytes"` // bytes of evicted chunks whose segments stay until they are old
}

func (f *Freed) add(other Freed) {
	f.Bytes += other.Bytes
	f.Chunks += other.Chunks
	f.Kept += other.Kept
}

// evictNow does what evictOldest does, for a caller that does not hold slow.
func (c *Cache) evictNow() bool {
	c.slow.Lock()
	defer c.slow.Unlock()
	return c.evictOldest()
}

// evictOldest frees an external file that is not in use. If there is none, it frees the least
// recently used sealed segment in which at most three quarters of the bytes are pinned. It reports
// whether it freed something. If there are too many segments, it frees no external file, and also
// merges small segments with more pinned bytes. The caller holds slow.
//
// There is always room to move pinned records, unless the limit was larger when the pins or the
// segments were made. In that case the pinned records are freed with their segment: the limit comes
// before the pins.
//
// Nothing is evicted before the cache is loaded, because the oldest segment is not known.
func (c *Cache) evictOldest() bool {
	if !c.isLoaded() {
		return false
	}
	c.mu.RLock()
	many := c.tooMany()
	c.mu.RUnlock()
	if !many && c.External.evict() > 0 {
		return true
	}
	var stuck *segment
	for _, s := range c.byAge() {
		pinned := c.pinnedIn(s)
		small := many && s.cost() < c.segmentSize/2 // to be merged with others
		if 4*pinned > 3*s.cost() && !small {
			continue
		}
		if pinned > 0 && !c.canMove(pinned) {
			stuck = cmp.Or(stuck, s)
			continue
		}
		if _, ok := c.evict(s, c.pins.has); ok {
			return true
		}
	}
	if stuck == nil {
		return false
	}
	_, ok := c.evict(stuck, nil)
	return ok
}

// canMove reports whether there is room for size bytes of records elsewhere.
func (c *Cache) canMove(size int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	files := size/c.segmentSize + 2
	return c.fits(size + files*2*onDisk(1))
}

// evict frees a sealed segment after it has moved the records that keep selects; a nil keep selects
// none. Reads of the segment continue. The caller holds slow, so that no other caller frees the
// segment. ok reports whether the segment could be freed.
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
			c.cannotFree(s, fmt.Errorf("move a record: %w", err))
			return freed, false
		}
		moved += recordSize(r.length) + tableEntry
	}
	if err := s.unlink(); err != nil {
		c.cannotFree(s, err)
		return freed, false
	}
	freed = Freed{Bytes: max(0, s.cost()-moved), Chunks: c.forget(s)}
	c.evicted.Add(freed.Bytes)
	if err := s.file.Close(); err != nil {
		c.log.Warn("cache segment cannot be closed", "segment", s.path, "err", err)
	}
	return freed, true
}

func (c *Cache) cannotFree(s *segment, cause error) {
	c.stuck.warn(c.log, "cache segment cannot be freed", "segment", s.path, "err", cause)
}

// lies reports whether the chunk with key k lies at p.
func (c *Cache) lies(k key, p place) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.lies(k, p)
}

// forget removes a segment and its records from the index, and returns how many chunks that were.
func (c *Cache) forget(s *segment) (chunks int64) {
	c.mu.Lock()
	c.sealed = slices.DeleteFunc(c.sealed, func(other *segment) bool { return other == s })
	c.used -= s.cost()
	s.gone = true
	c.mu.Unlock()
	c.forEach(s, func(r record) {
		c.index.unset(r.key, place{s, r.offset})
		chunks++
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.exclude(s)
	return chunks
}

// forEach calls fn for each record of a segment that the index points to. mu is held during fn, and
// released after each batch.
func (c *Cache) forEach(s *segment, fn func(record)) {
	c.mu.RLock()
	records := s.records
	c.mu.RUnlock()
	for batch := range slices.Chunk(records, batchSize) {
		c.mu.Lock()
		for _, r := range batch {
			if c.index.lies(r.key, place{s, r.offset}) {
				fn(r)
			}
		}
		c.mu.Unlock()
	}
}

// move verifies a record and copies it to the kept segment. It drops a damaged record.
func (c *Cache) move(s *segment, r record) error {
	buffer := buffers.Get().(*[]byte)
	b := (*buffer)[:recordSize(r.length)]
	id, err := s.readRecord(r, b)
	if err == errHangs { // the abandoned read owns the buffer
		return err
	}
	defer buffers.Put(buffer)
	from := place{s, r.offset}
	if err != nil {
		c.drop(r.key, from, err)
		return nil
	}
	to, offset, err := c.reserveKept(int64(len(b)))
	if err != nil {
		return err
	}
	_, err = to.file.WriteAt(b, int64(offset))
	c.mu.Lock()
	defer c.mu.Unlock()
	to.pending--
	if err != nil {
		c.failed.Add(1)
		return err
	}
	if c.index.lies(r.key, from) {
		c.index.set(r.key, place{to, offset})
		to.add(chunk.Ref{ID: id, Length: r.length}, offset)
		to.used.Store(max(to.used.Load(), s.used.Load()))
	}
	return nil
}

// Prune evicts everything that is not pinned, unless the disk fails. It rewrites segments with
// pinned chunks, except those of which less than a sixteenth is unused.
func (c *Cache) Prune() (freed Freed) {
	if c.isAbsent() != nil {
		return freed
	}
	<-c.loaded
	c.slow.Lock()
	for n := c.External.evict(); n > 0; n = c.External.evict() {
		freed.Bytes += n
	}
	c.slow.Unlock()
	freed.add(c.evictChunks(func(key) bool { return true }, 16))
	return freed
}

// Evict forgets those of the chunks that are cached and not pinned. It frees their space at once if
// at least a quarter of their segment is unused then. Otherwise their space is freed when the
// segment is the least recently used one.
func (c *Cache) Evict(chunks *Set) (freed Freed) {
	if c.isAbsent() != nil {
		return freed
	}
	<-c.loaded
	return c.evictChunks(chunks.has, 4)
}

// evictChunks forgets the chunks that match and are not pinned. It frees the unused space of a
// segment if that is at least 1/parts of the segment.
func (c *Cache) evictChunks(match func(key) bool, parts int64) (freed Freed) {
	c.slow.Lock()
	c.sealAll()
	c.slow.Unlock()
	for _, s := range c.byAge() {
		freed.add(c.evictIn(s, match, parts))
	}
	return freed
}

// evictIn does what evictChunks does, for one sealed segment.
func (c *Cache) evictIn(s *segment, match func(key) bool, parts int64) (freed Freed) {
	c.slow.Lock()
	defer c.slow.Unlock()
	if s.gone {
		return freed
	}
	unused := s.size
	c.forEach(s, func(r record) {
		if !match(r.key) || c.pins.has(r.key) {
			unused -= recordSize(r.length)
			return
		}
		c.index.unset(r.key, place{s, r.offset})
		freed.Chunks++
		freed.Kept += recordSize(r.length) + tableEntry
	})
	if unused*parts < s.size {
		return freed
	}
	if f, ok := c.evict(s, func(key) bool { return true }); ok {
		freed.Bytes, freed.Kept = f.Bytes, 0
	}
	return freed
}
