package direct

import (
	"context"

	"lighter/format/chunk"
)

const (
	// maxBatch is how many plain bytes of chunks wait together to be stored. No chunk has more.
	maxBatch = chunk.MaxLength
	// maxBatches is how many batches wait. If the cache is slower than the registry, further ones
	// are dropped, and their chunks are fetched when they are read: a pull does not wait for the
	// cache.
	maxBatches = 32
	// maxSeen bounds the plain bytes of a layer that are stored: a small layer that inflates to
	// gigabytes must not evict everything else.
	maxSeen = 4 * maxWhole
)

// StoreSeen stores the chunks that pulls have seen while they read layers as a whole, until ctx
// ends. So these chunks are not fetched again. put is store.Cache.Put.
func (m *Images) StoreSeen(ctx context.Context, put func(ref chunk.Ref, plain []byte)) {
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-m.batches:
			b.store(put)
		}
	}
}

// batch has chunks, and their bytes one after the other.
type batch struct {
	refs  []chunk.Ref
	plain []byte
}

func (b *batch) store(put func(ref chunk.Ref, plain []byte)) {
	plain := b.plain
	for _, ref := range b.refs {
		put(ref, plain[:ref.Length])
		plain = plain[ref.Length:]
	}
}

// seen passes the chunks of one layer on, to be stored. It is for one goroutine at a time.
type seen struct {
	to   chan<- batch
	now  batch
	left int64 // plain bytes of the layer that may still be stored
}

// add passes on a chunk with the bytes that its ID is the digest of.
func (s *seen) add(id chunk.ID, plain []byte) {
	if int64(len(plain)) > s.left {
		return
	}
	s.left -= int64(len(plain))
	if len(s.now.plain)+len(plain) > maxBatch {
		s.flush()
	}
	if s.now.plain == nil {
		s.now.plain = make([]byte, 0, maxBatch)
	}
	s.now.refs = append(s.now.refs, chunk.Ref{ID: id, Length: uint32(len(plain))})
	s.now.plain = append(s.now.plain, plain...)
}

// flush passes on what add has kept back.
func (s *seen) flush() {
	if len(s.now.refs) == 0 {
		return
	}
	select {
	case s.to <- s.now:
	default:
	}
	s.now = batch{}
}
