package trees

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

// streamed is a source that never returns a byte. It counts the requests.
type streamed struct {
	prefetch.Source
	mu              sync.Mutex // guards what follows
	asked, inFlight int        // requests in all, and requests in flight
}

func (s *streamed) Has(chunk.ID) bool { return false }

func (s *streamed) IsLoading() bool { return false }

func (s *streamed) Stream(context.Context, chunk.Ref, int64) (func(context.Context) (int64, error), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.inFlight++
	return func(ctx context.Context) (int64, error) {
		<-ctx.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inFlight--
		return 0, ctx.Err()
	}, nil
}

// counts returns the number of requests, and of those in flight, when all goroutines wait.
func (s *streamed) counts() (asked, inFlight int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.inFlight
}

// starting returns a hub whose tree has one startup pack.
func starting(t *testing.T, name string) *fakeHub {
	t.Helper()
	h := newHubOf(t, name, someChunk)
	l, pack := index.NewLocations(h.tree), chunk.Sum([]byte("start"))
	for range 100 {
		l.Add(chunk.Unit{Pack: pack})
	}
	l.Startup(index.Startup{Pack: pack, Units: []uint32{1000}, AtMount: true})
	h.locations = l.Encode()
	return h
}

// The startup pack of a tree is requested once, when the tree's index arrives. The request
// continues when the tree is opened for a mount, and ends when the tree is removed. Of the trees
// that are not mounted, only the latest maxEarly stay open.
func TestStartsBeginEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := starting(t, "file")
		trees, chunks := openTrees(t, h), &streamed{}
		trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{Limit: 1 << 30},
			trees.log)
		ensure := func(h *fakeHub) {
			t.Helper()
			trees.source = h
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		ensure(h)
		ensure(h)
		if asked, inFlight := chunks.counts(); asked != 1 || inFlight != 1 {
			t.Errorf("asked %d times, %d requests in flight; want 1, 1", asked, inFlight)
		}
		m, err := trees.openVerified(t.Context(), h.tree)
		if asked, inFlight := chunks.counts(); err != nil || asked != 1 || inFlight != 1 || len(trees.early) != 0 {
			t.Errorf("opened: %v; asked %d times, %d requests in flight, %d open early; want 1, 1, 0", err, asked,
				inFlight, len(trees.early))
		}
		m.close()
		if _, inFlight := chunks.counts(); inFlight != 0 {
			t.Errorf("closed: %d requests in flight, want 0", inFlight)
		}
		ensure(h)
		synctest.Wait()
		if err := remove(trees, h.tree); err != nil {
			t.Error(err)
		}
		if asked, inFlight := chunks.counts(); asked != 2 || inFlight != 0 {
			t.Errorf("removed: asked %d times, %d requests in flight; want 2, 0", asked, inFlight)
		}
		ensure(h)
		trees.locals.bytes[h.tree] = 1
		if _, has := trees.HasLocal(h.tree); !has {
			t.Error("no local device")
		}
		trees.closeEarly(h.tree)
		before, _ := chunks.counts()
		ensure(h)
		if asked, _ := chunks.counts(); asked != before || len(trees.early) != 0 {
			t.Errorf("with a local device: %d requests, %d open early; want 0, 0", asked-before, len(trees.early))
		}
		for i := range maxEarly + 3 {
			ensure(starting(t, fmt.Sprint(i)))
		}
		if _, inFlight := chunks.counts(); inFlight != maxEarly || len(trees.early) != maxEarly {
			t.Errorf("of many trees: %d requests in flight, %d open early; want %d", inFlight, len(trees.early),
				maxEarly)
		}
		trees.EndStreams()
		delete(trees.locals.bytes, h.tree)
		ensure(h)
		if _, inFlight := chunks.counts(); inFlight != 0 {
			t.Errorf("after the end: %d requests in flight, want 0", inFlight)
		}
	})
}

// A tree without startup packs is not opened before it is mounted.
func TestTreeWithoutStartupPacks(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	trees.prefetcher = prefetch.New(func() prefetch.Source { return &streamed{} }, prefetch.Options{Limit: 1 << 30},
		trees.log)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil || len(trees.early) != 0 {
		t.Errorf("%v, %d trees open early, want 0", err, len(trees.early))
	}
}

// If a tree has no startup packs, and newer locations name some, they are prefetched when the newer
// locations arrive.
func TestStartsBeginWithNewerLocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		trees, chunks := openTrees(t, h), &streamed{}
		trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{Limit: 1 << 30},
			trees.log)
		for want := range 2 {
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
				t.Fatal(err)
			}
			if asked, inFlight := chunks.counts(); asked != want || inFlight != want {
				t.Errorf("asked %d times, %d requests in flight; want %d of each", asked, inFlight, want)
			}
			h.locations = starting(t, "file").locations
		}
		if len(trees.early) != 1 {
			t.Errorf("%d trees open early, want 1", len(trees.early))
		}
		trees.Close()
		if _, inFlight := chunks.counts(); inFlight != 0 {
			t.Errorf("after the end: %d requests in flight, want 0", inFlight)
		}
	})
}
