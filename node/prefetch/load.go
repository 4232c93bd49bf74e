package prefetch

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/index"
)

// loads are the reads of cached chunks from the disk into memory, of all devices together.
type loads struct {
	slots chan struct{} // has a value for each unit that is being loaded
	bytes atomic.Int64  // uncompressed bytes that were loaded since the node started
}

func newLoads() loads { return loads{slots: make(chan struct{}, maxLoads)} }

// loader loads the cached chunks of startup packs, in the order in which a start will read them.
// That is faster than the kernel's reads, which come one after the other.
type loader struct {
	loads   *loads
	cache   Cache
	extents *index.Map
}

// load loads the units' cached chunks until allow returns false for a unit's bytes, or ctx is done.
func (l *loader) load(ctx context.Context, units []unit, allow func(bytes int64) bool) {
	var group errgroup.Group
	for _, u := range units {
		refs, bytes := l.cached(u.extents)
		if bytes == 0 {
			continue
		}
		if !allow(bytes) || !l.enter(ctx) {
			break
		}
		group.Go(func() error {
			defer func() { <-l.loads.slots }()
			l.cache.Load(refs)
			l.loads.bytes.Add(bytes)
			return nil
		})
	}
	_ = group.Wait() // no error: Load skips chunks that it cannot read
}

func (l *loader) enter(ctx context.Context) bool {
	select {
	case l.loads.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// cached returns the cached chunks of extents, and their bytes.
func (l *loader) cached(extents []int64) (refs []chunk.Ref, bytes int64) {
	for _, i := range extents {
		if e, err := l.extents.Extent(i); err == nil && l.cache.Has(e.ID) {
			refs = append(refs, chunk.Ref{ID: e.ID, Length: e.Length})
			bytes += int64(e.Length)
		}
	}
	return refs, bytes
}
