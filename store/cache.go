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
	// Load reads chunks from disk into memory, as far as they are cached. It returns when that is
	// done. It is for a caller that is about to read all of them.
	Load(refs []chunk.Ref)
	// Put stores a chunk that the caller has verified, if it can. It does not keep plain.
	Put(ref chunk.Ref, plain []byte)
	// IsLoading reports whether chunks that are missing may turn up without a Put: a cache can be
	// used before all its chunks are known.
	IsLoading() bool
}

// storage stores the chunks of answers in the cache, after the readers have them.
type storage struct {
	cache    Cache
	slots    chan struct{}
	unstored atomic.Int64 // plain bytes of answers that have arrived and are not stored yet
	dropped  atomic.Int64 // answers for which the cache was too slow
	invalid  *atomic.Int64
}

// put stores all chunks of an answer that are not cached yet. It drops the answer if all answers
// that are not stored yet would exceed maxUnstored.
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
