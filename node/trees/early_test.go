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

// streamed is a Chunks of which nothing comes: it counts what is asked for, and what
// is still waited for.
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

// counts returns them once nothing changes any more.
func (s *streamed) counts() (asked, waits int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.waits
}

// starting is a hub whose tree has one startup pack.
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

// What a start needs is asked for as soon as a tree is here, once, and no longer when
// the tree goes. Whoever mounts it goes on with what has begun. Of trees that nobody
// mounts the last ones are kept ready.
func TestStartsBeginEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := starting(t, "file")
		trees, chunks := openTrees(t, h), &streamed{}
		trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{Limit: 1 << 30}, trees.log)
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
			t.Errorf("asked %d times, %d are on their way", asked, waits)
		}
		m, err := trees.openVerified(t.Context(), h.tree)
		if asked, waits := chunks.counts(); err != nil || asked != 1 || waits != 1 || len(trees.early) != 0 {
			t.Errorf("mounted: %v; asked %d times, %d are on their way, %d are early", err, asked, waits, len(trees.early))
		}
		m.close()
		if _, waits := chunks.counts(); waits != 0 {
			t.Errorf("closed: %d are on their way", waits)
		}
		ensure(h)
		synctest.Wait()
		if err := remove(trees, h.tree); err != nil {
			t.Error(err)
		}
		if asked, waits := chunks.counts(); asked != 2 || waits != 0 {
			t.Errorf("removed: asked %d times, %d are on their way", asked, waits)
		}
		ensure(h)
		if trees.locals.bytes[h.tree] = 1; !trees.UsesLocal(h.tree) {
			t.Error("no local device")
		}
		trees.closeEarly(h.tree)
		before, _ := chunks.counts()
		ensure(h)
		if asked, _ := chunks.counts(); asked != before || len(trees.early) != 0 {
			t.Errorf("of one with a local device %d are asked for, %d are early", asked-before, len(trees.early))
		}
		for i := range maxEarly + 3 {
			ensure(starting(t, fmt.Sprint(i)))
		}
		if _, waits := chunks.counts(); waits != maxEarly || len(trees.early) != maxEarly {
			t.Errorf("of many: %d are on their way, %d are early", waits, len(trees.early))
		}
		trees.EndStreams()
		delete(trees.locals.bytes, h.tree)
		ensure(h)
		if _, waits := chunks.counts(); waits != 0 {
			t.Errorf("in the end %d are on their way", waits)
		}
	})
}

// A tree of which nothing is known of its starts is opened when it is mounted.
func TestNothingToBeginWith(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	trees.prefetcher = prefetch.New(func() prefetch.Source { return &streamed{} }, prefetch.Options{Limit: 1 << 30}, trees.log)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil || len(trees.early) != 0 {
		t.Errorf("%v, %d are early", err, len(trees.early))
	}
}

// A tree that is here and claimed, of whose starts nothing was known, begins to start
// with the first locations that say something of them.
func TestStartsBeginWithNewerLocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		trees, chunks := openTrees(t, h), &streamed{}
		trees.prefetcher = prefetch.New(func() prefetch.Source { return chunks }, prefetch.Options{Limit: 1 << 30}, trees.log)
		for want := range 2 {
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
				t.Fatal(err)
			}
			if asked, waits := chunks.counts(); asked != want || waits != want {
				t.Errorf("asked %d times, want %d; %d are on their way", asked, want, waits)
			}
			h.locations = starting(t, "file").locations
		}
		if len(trees.early) != 1 {
			t.Errorf("%d are early", len(trees.early))
		}
		trees.Close()
		if _, waits := chunks.counts(); waits != 0 {
			t.Errorf("in the end %d are on their way", waits)
		}
	})
}
