// Package store promises the bytes of chunks, wherever they are: Tier looks on
// this machine's disk first, Units asks an origin for the unit that a chunk
// lies in and keeps its neighbours, and each chunk that it hands out has been
// verified.
//
// It refuses to know what chunks are for. An origin that lies costs retries; a
// cache that fails costs a fetch; neither costs a wrong byte.
package store

import (
	"context"
	"fmt"
	"sync"

	"lighter/format/chunk"
)

// Cache is what a Tier needs of a cache (store/disk has one). It never fails: a
// chunk that cannot be read is not there.
type Cache interface {
	// Read fills dst with the chunk's bytes from offset on and tells whether
	// it could.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Has tells whether the chunk is believed to be there.
	Has(id chunk.ID) bool
	// Put stores a verified chunk, if it can.
	Put(ref chunk.Ref, plain []byte)
}

// Origin is where chunks come from that are not on this machine. It puts what
// it fetches into the cache by itself, because one request brings many chunks.
type Origin interface {
	chunk.Fetcher
	// Warm fetches the unit of the chunk and stores it, for nobody who waits.
	Warm(ctx context.Context, ref chunk.Ref) error
}

// Tier is a cache before an origin. It is safe for concurrent use.
type Tier struct {
	cache  Cache
	origin Origin
}

// NewTier puts cache before origin.
func NewTier(cache Cache, origin Origin) *Tier { return &Tier{cache, origin} }

// scratch holds whole chunks of which only a part is wanted.
var scratch = sync.Pool{New: func() any { b := make([]byte, chunk.MaxLength); return &b }}

// Cached fills dst with the chunk's bytes from offset on if they are on this
// machine.
func (t *Tier) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	return t.cache.Read(ref, offset, dst)
}

// Read fills dst with the chunk's bytes from offset on, from the origin: it is
// for what Cached did not have.
func (t *Tier) Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte) error {
	if offset < 0 || offset+len(dst) > int(ref.Length) || ref.Length > chunk.MaxLength {
		return fmt.Errorf("read %d bytes at %d of a chunk of %d", len(dst), offset, ref.Length)
	}
	if len(dst) == int(ref.Length) {
		_, err := t.origin.Fetch(ctx, ref, dst)
		return err
	}
	buffer := scratch.Get().(*[]byte)
	defer scratch.Put(buffer)
	whole := (*buffer)[:ref.Length]
	if _, err := t.origin.Fetch(ctx, ref, whole); err != nil {
		return err
	}
	copy(dst, whole[offset:])
	return nil
}

// Warm makes sure that the chunk is in the cache, as far as the cache takes it.
func (t *Tier) Warm(ctx context.Context, ref chunk.Ref) error {
	if t.cache.Has(ref.ID) {
		return nil
	}
	return t.origin.Warm(ctx, ref)
}
