package disk

import "errors"

// ErrFull means that there is no room without evicting something.
var ErrFull = errors.New("the cache is full, and nothing is evicted for background work")

// errHalf means that external files and pins take all that they may.
var errHalf = errors.New(
	"local devices may take half of the cache, and less if much is pinned: make the cache larger")

// External accounts for files of other packages that are on the cache's disk and count in its
// limit. Package trees has such files: local devices, which hold the bytes of chunks in another
// form. The cache never reads these files. External is a part of Cache, and safe for concurrent
// use.
type External struct {
	cache *Cache
	yield func() int64 // guarded by the cache's slow
	bytes int64        // guarded by the cache's mu
}

// OnShort registers yield, which the cache calls when it needs room, before it evicts a chunk.
// yield removes one external file that is not in use, calls Release, and returns how many bytes
// that freed, or 0. It must not wait for anything that may wait for the cache.
func (e *External) OnShort(yield func() int64) {
	e.cache.slow.Lock()
	defer e.cache.slow.Unlock()
	e.yield = yield
}

// Reserve counts bytes of a new external file. It returns ErrFull if something had to be evicted
// for the file, and errHalf if external files or pins would exceed their half.
func (e *External) Reserve(bytes int64) error {
	c := e.cache
	if cause := c.isAbsent(); cause != nil {
		return cause
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if after := e.bytes + bytes; after > c.limits.Size/2 || c.pinned > (c.limits.Size-after)/2 {
		return errHalf
	}
	if !c.hasRoom(bytes) {
		return ErrFull
	}
	e.add(bytes)
	return nil
}

// Count counts an external file that exists already.
func (e *External) Count(bytes int64) {
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	e.add(bytes)
}

// Release undoes Reserve or Count after the file was removed.
func (e *External) Release(bytes int64) { e.Count(-bytes) }

// add changes the counts. The caller holds the cache's mu.
func (e *External) add(bytes int64) {
	e.bytes += bytes
	e.cache.used += bytes
}

// evict removes one external file, and returns how many bytes that freed. The caller holds the
// cache's slow.
func (e *External) evict() (freed int64) {
	if e.yield != nil {
		freed = e.yield()
		e.cache.evicted.Add(freed)
	}
	return freed
}

// half returns how many bytes may be pinned: half of what external files leave of the limit.
func (e *External) half() int64 {
	e.cache.mu.RLock()
	defer e.cache.mu.RUnlock()
	return (e.cache.limits.Size - e.bytes) / 2
}
