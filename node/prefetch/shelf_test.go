package prefetch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/test/testkit/filetree"
)

// shelf is a Source in memory, some of whose chunks count as cached. It counts requests to fetch,
// but fetches nothing.
type shelf struct {
	mu        sync.Mutex
	chunks    map[chunk.ID][]byte
	cached    map[chunk.ID]bool
	requested map[chunk.ID]int
	perRTT    int64       // what BytesPerRTT returns
	keeps     bool        // Prefetch makes chunks cached
	enough    func() bool // Prefetch calls done if it returns true
	done      func()
	hang      chan struct{} // Prefetch waits until it is closed; nil: it does not wait
}

var _ Source = (*shelf)(nil)

func (s *shelf) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cached[ref.ID] && copy(dst, s.chunks[ref.ID][offset:]) == len(dst)
}

func (s *shelf) Has(id chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cached[id]
}

func (*shelf) IsLoading() bool { return false }

func (s *shelf) Read(_ context.Context, ref chunk.Ref, offset int, dst []byte, _ func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if copy(dst, s.chunks[ref.ID][offset:]) != len(dst) {
		return errors.New("read beyond the chunk")
	}
	return nil
}

func (s *shelf) Received() map[string]int64 { return map[string]int64{"https://shelf.test": 7} }

func (s *shelf) Prefetch(_ context.Context, ref chunk.Ref) error {
	if s.hang != nil {
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requested[ref.ID]++
	if s.keeps {
		s.cached[ref.ID] = true
	}
	if s.enough != nil && s.enough() {
		s.done()
	}
	return nil
}

func (s *shelf) Stream(ctx context.Context, ref chunk.Ref, _ int64) (func(context.Context) (int64, error), error) {
	return func(context.Context) (int64, error) { return 0, s.Prefetch(ctx, ref) }, nil
}

func (s *shelf) BytesPerRTT(chunk.Unit) int64 { return s.perRTT }

func (*shelf) Load([]chunk.Ref) {}

var quiet = slog.New(slog.DiscardHandler)

// shelved returns the device of a few files, half of whose chunks are cached.
func shelved(t testing.TB, options Options) (*Device, *shelf) {
	t.Helper()
	tree := filetree.New(t, 40, 60000)
	s := &shelf{chunks: tree.Chunks, cached: tree.Half, requested: map[chunk.ID]int{}}
	return s.open(tree.Extents, nil, options), s
}

func (s *shelf) open(extents *index.Map, locations *index.Locations, options Options) *Device {
	return New(func() Source { return s }, options, quiet).Open(extents, locations, quiet)
}

func extentOf(t *testing.T, d *Device, i int64) index.Extent {
	t.Helper()
	e, err := d.Extents().Extent(i)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
