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

// streamed is a source that returns nothing. It counts the requests, and those in flight.
type streamed struct {
	prefetch.Source
	mu           sync.Mutex // guards what follows
	asked, waits int
}

func (s *streamed) Has(chunk.ID) bool { return false }

func (s *streamed) Stream(context.Context, chunk.Ref, int64) (func(context.Context) (int64, error), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.waits++
	return func(ctx context.Context) (int64, error) {
		<-ctx.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waits--
		return 0, ctx.Err()
	}, nil
}

// counts returns both when all goroutines wait.
func (s *streamed) counts() (asked, waits int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.waits
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

// The startup pack of a tree is requested once, when the tree's index arrives, and cancelled when
// the tree is removed. Opening the tree takes over what is prefetched. Of trees that are not
// mounted, the latest stay open.
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
		if asked, waits := chunks.counts(); asked != 1 || waits != 1 {
			t.Errorf("asked %d times, %d requests in flight; want 1, 1", asked, waits)
		}
		m, err := trees.openVerified(t.Context(), h.tree)
		if asked, waits := chunks.counts(); err != nil || asked != 1 || waits != 1 || len(trees.early) != 0 {
			t.Errorf("opened: %v; asked %d times, %d requests in flight, %d open early; want 1, 1, 0", err, asked,
				waits, len(trees.early))
		}
		m.close()
		if _, waits := chunks.counts(); waits != 0 {
			t.Errorf("closed: %d requests in flight", waits)
		}
		ensure(h)
		synctest.Wait()
		if err := remove(trees, h.tree); err != nil {
			t.Error(err)
		}
		if asked, waits := chunks.counts(); asked != 2 || waits != 0 {
			t.Errorf("removed: asked %d times, %d requests in flight; want 2, 0", asked, waits)
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
		if _, waits := chunks.counts(); waits != maxEarly || len(trees.early) != maxEarly {
			t.Errorf("of many trees: %d requests in flight, %d open early", waits, len(trees.early))
		}
		trees.EndStreams()
		delete(trees.locals.bytes, h.tree)
		ensure(h)
		if _, waits := chunks.counts(); waits != 0 {
			t.Errorf("after the end: %d requests in flight, want 0", waits)
		}
	})
}

// A tree without startup packs is not opened before it is mounted.
func TestNothingToBeginWith(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	trees.prefetcher = prefetch.New(func() prefetch.Source { return &streamed{} }, prefetch.Options{Limit: 1 << 30},
		trees.log)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil || len(trees.early) != 0 {
		t.Errorf("%v, %d trees open early, want 0", err, len(trees.early))
	}
}

// A tree without startup packs is prefetched when newer locations name some.
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
			if asked, waits := chunks.counts(); asked != want || waits != want {
				t.Errorf("asked %d times, want %d; %d requests in flight", asked, want, waits)
			}
			h.locations = starting(t, "file").locations
		}
		if len(trees.early) != 1 {
			t.Errorf("%d trees open early, want 1", len(trees.early))
		}
		trees.Close()
		if _, waits := chunks.counts(); waits != 0 {
			t.Errorf("after the end: %d requests in flight, want 0", waits)
		}
	})
}
