package store

import (
	"sync/atomic"

	"lighter/format/chunk"
)

// Cache is a cache of plain chunks on this machine; store/disk has one. Its methods return no
// errors: a chunk that cannot be read is missing. It is safe for concurrent use.
// test/testkit/cachetest checks this contract.
type Cache interface {
	// Read fills dst with the chunk's bytes from offset on, and reports whether it could.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Has reports whether the chunk is believed to be cached. A Read of it may still fail.
	Has(id chunk.ID) bool
	// Load reads those of the chunks that are cached from disk into memory, and returns when it has
	// read them. It is for a caller that is about to read all of them.
	Load(refs []chunk.Ref)
	// Put stores a chunk that the caller has verified, if it can. It does not use plain after it
	// has returned.
	Put(ref chunk.Ref, plain []byte)
	// IsLoading reports whether missing chunks may still turn up without a Put, because the cache
	// does not know all its chunks yet.
	IsLoading() bool
}

// storage stores the chunks of answers in the cache, after the readers have them.
type storage struct {
	cache    Cache
	slots    chan struct{}
	unstored atomic.Int64 // memory of the answers that have arrived and are not stored yet, in bytes
	dropped  atomic.Int64 // answers that were not stored because the cache was too slow
	invalid  *atomic.Int64
}

// put stores all chunks of an answer that are not cached yet. It drops the answer if, with it, more
// than maxUnstored bytes would wait to be stored.
func (s *storage) put(batch Batch) {
	size := batch.Memory()
	defer s.unstored.Add(-size)
	if s.unstored.Add(size) > maxUnstored {
		s.dropped.Add(1)
		return
	}
	s.slots <- struct{}{}
	defer func() { <-s.slots }()
	for i := range batch.Len() {
		ref := batch.Ref(i)
		if s.cache.Has(ref.ID) {
			continue
		}
		plain, err := batch.Chunk(i)
		if err != nil {
			s.invalid.Add(1)
			continue
		}
		s.cache.Put(ref, plain)
	}
}
