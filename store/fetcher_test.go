package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// A read stores all chunks of the unit.
func TestReadStoresTheUnit(t *testing.T) {
	unit, refs := encode(t, "one", "two", "three")
	cache := newMemory()
	src := &source{unit: func(_ context.Context, u chunk.Unit) ([]byte, error) {
		if u != where {
			t.Errorf("got a request for unit %v, want %v", u, where)
		}
		return unit, nil
	}}
	u := newFetcher(src, cache)
	if got, err := fetch(t, u, refs[1]); got != "two" || err != nil {
		t.Fatalf("got %q, %v; want \"two\"", got, err)
	}
	u.Wait()
	for i, want := range []string{"one", "two", "three"} {
		if string(cache.chunks[refs[i].ID]) != want {
			t.Errorf("chunk %q was not stored", want)
		}
	}
	if s := u.Stats(); s.Requests != 1 || s.Bytes != int64(len(unit)) {
		t.Errorf("got %+v, want one request and %d bytes", s, len(unit))
	}
}

func TestReadersShareARequest(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	release := make(chan struct{})
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { <-release; return unit, nil }}
	u := newFetcher(src, newMemory())
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := fetch(t, u, refs[i%2]); err != nil {
				t.Error(err)
			}
		})
	}
	for { // until all wait for the same flight
		u.flights.mu.Lock()
		f := u.flights.byKey[flightKey{unit: where}]
		all := f != nil && f.waiters == 20
		u.flights.mu.Unlock()
		if all {
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if n := src.asked.Load(); n != 1 {
		t.Errorf("got %d requests for one unit, want 1", n)
	}
}

// A request is cancelled when the last reader that waits for it gives up.
func TestLastWaiterCancels(t *testing.T) {
	cancelled := make(chan struct{})
	src := &source{unit: func(ctx context.Context, _ chunk.Unit) ([]byte, error) {
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	}}
	u := newFetcher(src, newMemory())
	ctx, cancel := context.WithCancel(t.Context())
	_, refs := encode(t, "one")
	done := make(chan error)
	go func() {
		err := u.Share().Read(ctx, refs[0], 0, make([]byte, 3), nil)
		done <- err
	}()
	for src.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the reader: got %v, want context.Canceled", err)
	}
	<-cancelled
	u.Wait()
	if len(u.flights.byKey) != 0 {
		t.Error("a cancelled flight can be joined")
	}
}

func TestReadsPartsOfChunks(t *testing.T) {
	unit, refs := encode(t, "a chunk of some length", "its neighbour")
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}
	u := newFetcher(src, newMemory())
	got := make([]byte, 5)
	if u.Share().Cached(refs[0], 2, got) {
		t.Error("Cached before Read: got true, want false")
	}
	if err := u.Share().Read(t.Context(), refs[0], 2, got, nil); err != nil || string(got) != "chunk" {
		t.Errorf("got %q, %v; want \"chunk\"", got, err)
	}
	u.Wait()
	if !u.Share().Cached(refs[1], 4, got) || string(got) != "neigh" {
		t.Errorf("the next chunk of the unit is not cached: got %q", got)
	}
	for _, offset := range []int{20, -1} {
		if u.Share().Read(t.Context(), refs[0], offset, got, nil) == nil {
			t.Errorf("Read of 5 bytes at %d of 22: got no error", offset)
		}
	}
	refs[0].Length = 40
	if newFetcher(src, noCache{}).Share().Read(t.Context(), refs[0], 30, got, nil) == nil {
		t.Error("Read with a wrong length: got no error")
	}
}

// A reader that missed the cache while the chunk was being stored finds it there, and does not
// fetch it again.
func TestStoredChunksAreNotFetched(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}
	u := newFetcher(src, newMemory())
	for range 2 {
		if err := u.Share().Prefetch(t.Context(), refs[0]); err != nil {
			t.Fatal(err)
		}
		if got, err := fetch(t, u, refs[1]); got != "two" || err != nil {
			t.Fatalf("got %q, %v; want \"two\"", got, err)
		}
	}
	if n := src.asked.Load(); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}

// slow is a cache whose Put hangs until goOn is closed.
type slow struct {
	*memory
	goOn chan struct{}
}

func (s slow) Put(ref chunk.Ref, plain []byte) {
	<-s.goOn
	s.memory.Put(ref, plain)
}

// Readers get their chunks while the cache stores nothing. Answers beyond maxUnstored are dropped.
func TestReadersDoNotWaitForASlowCache(t *testing.T) {
	const size, fit = chunk.MaxLength, maxUnstored / chunk.MaxLength
	const n = 2 * fit
	cache := slow{newMemory(), make(chan struct{})}
	units := map[chunk.Unit][]byte{}
	var refs []chunk.Ref
	for i := range n {
		unit, r := encode(t, fmt.Sprint(strings.Repeat(" ", size-128), i)) // somewhat less than size, with the ID
		r[0].Unit.N = uint32(i)
		units[r[0].Unit], refs = unit, append(refs, r[0])
	}
	u := newFetcher(&source{unit: func(_ context.Context, w chunk.Unit) ([]byte, error) {
		return units[w], nil
	}}, cache)
	for _, ref := range refs {
		if _, err := fetch(t, u, ref); err != nil {
			t.Fatal(err)
		}
	}
	for u.Stats().Unstored < n-fit { // answers are counted after the readers have them
		time.Sleep(time.Millisecond)
	}
	close(cache.goOn)
	u.Wait()
	if got := len(cache.chunks); got != fit {
		t.Errorf("%d chunks were stored, want %d", got, fit)
	}
	if n := u.storage.unstored.Load(); n != 0 {
		t.Errorf("in the end: got %d unstored bytes, want 0", n)
	}
}

// Prefetch returns when all chunks of the unit are stored.
func TestPrefetchStoresTheUnit(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	cache := newMemory()
	u := newFetcher(&source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}, cache)
	if err := u.Share().Prefetch(t.Context(), refs[0]); err != nil {
		t.Fatal(err)
	}
	if !cache.Has(refs[0].ID) || !cache.Has(refs[1].ID) {
		t.Error("Prefetch returned, and the unit is not stored")
	}
}

// While the source fails, background requests are not sent, but requests of readers are.
func TestPrefetchPausesWhileTheSourceFails(t *testing.T) {
	unit, refs := encode(t, "one")
	broken := true
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
		if broken {
			return nil, errors.New("connection refused")
		}
		return unit, nil
	}}
	cache := newMemory()
	s := newFetcher(src, cache).Share()
	for range 5 {
		if s.Prefetch(t.Context(), refs[0]) == nil {
			t.Error("Prefetch from a failing source: got no error")
		}
	}
	if n := src.asked.Load(); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
	broken = false
	if err := s.Read(t.Context(), refs[0], 0, make([]byte, 3), nil); err != nil {
		t.Fatal(err)
	}
	s.fetcher.Wait()
	clear(cache.chunks)
	if err := s.Prefetch(t.Context(), refs[0]); err != nil || !cache.Has(refs[0].ID) {
		t.Errorf("Prefetch once the source works: got %v, want no error and a stored chunk", err)
	}
}

// Received bytes count once, for the share that asked first, by origin.
func TestReceived(t *testing.T) {
	unit, refs := encode(t, "chunk", "neighbour")
	synctest.Test(t, func(t *testing.T) {
		src := &source{from: "https://one.test"}
		src.unit = func(context.Context, chunk.Unit) ([]byte, error) {
			time.Sleep(time.Second)
			return unit, nil
		}
		u := newFetcher(src, noCache{})
		first, second := u.Share(), u.Share()
		read := func(s *Share) {
			if err := s.Read(t.Context(), refs[0], 0, make([]byte, 5), nil); err != nil {
				t.Error(err)
			}
		}
		go read(first)
		synctest.Wait()
		read(second) // joins
		u.Wait()
		if a, b := first.Received(), second.Received(); len(a) != 1 || a[src.from] != int64(len(unit)) || len(b) != 0 {
			t.Errorf("got %v for the first share, %v for the second; want %d bytes and none", a, b, len(unit))
		}
		src.from = "https://two.test"
		read(second)
		u.Wait() // otherwise Prefetch would join the flight
		if err := second.Prefetch(t.Context(), refs[1]); err != nil {
			t.Error(err)
		}
		u.Wait()
		if b := second.Received(); len(b) != 1 || b[src.from] != 2*int64(len(unit)) {
			t.Errorf("got %v for the second share, want %d bytes", b, 2*len(unit))
		}
	})
}
