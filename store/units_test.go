package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// memory is a Cache that forgets nothing.
type memory struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
}

func newMemory() *memory { return &memory{chunks: map[chunk.ID][]byte{}} }

func (m *memory) Read(ref chunk.Ref, offset int, dst []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.chunks[ref.ID]
	return ok && copy(dst, b[offset:]) == len(dst)
}

func (m *memory) Has(id chunk.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.chunks[id]
	return ok
}

func (m *memory) Put(ref chunk.Ref, plain []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.chunks[ref.ID] = bytes.Clone(plain)
}

// source is a Source whose answers a test decides.
type source struct {
	unit  func(ctx context.Context, u chunk.Unit) ([]byte, error)
	chunk func(ctx context.Context, id chunk.ID) ([]byte, error)
	asked atomic.Int64
}

func (s *source) Unit(ctx context.Context, u chunk.Unit) ([]byte, error) {
	s.asked.Add(1)
	return s.unit(ctx, u)
}

func (s *source) Chunk(ctx context.Context, id chunk.ID) ([]byte, error) {
	s.asked.Add(1)
	if s.chunk == nil {
		return nil, fmt.Errorf("chunk %s: %w", id, chunk.ErrNotFound)
	}
	return s.chunk(ctx, id)
}

var where = chunk.Unit{Pack: chunk.ID{7}, N: 3}

// encode makes a unit of the chunks, and refs with the hint where.
func encode(t testing.TB, chunks ...string) (unit []byte, refs []chunk.Ref) {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var b pack.UnitBuilder
	for _, c := range chunks {
		ref := chunk.Ref{ID: chunk.Sum([]byte(c)), Length: uint32(len(c)), Unit: where}
		b.Add(ref.ID, []byte(c))
		refs = append(refs, ref)
	}
	return b.Encode(nil, enc), refs
}

func fetch(t testing.TB, u *Units, ref chunk.Ref) (string, error) {
	t.Helper()
	dst := make([]byte, ref.Length)
	n, err := u.Fetch(t.Context(), ref, dst)
	return string(dst[:n]), err
}

func TestFetchBringsTheNeighbours(t *testing.T) {
	unit, refs := encode(t, "one", "two", "three")
	cache := newMemory()
	src := &source{unit: func(_ context.Context, u chunk.Unit) ([]byte, error) {
		if u != where {
			t.Errorf("asked for unit %v", u)
		}
		return unit, nil
	}}
	u := NewUnits(src, cache)
	if got, err := fetch(t, u, refs[1]); got != "two" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	u.Wait()
	for i, want := range []string{"one", "two", "three"} {
		if string(cache.chunks[refs[i].ID]) != want {
			t.Errorf("%q was not stored", want)
		}
	}
	if s := u.Stats(); s.Requests != 1 || s.Bytes != int64(len(unit)) {
		t.Errorf("stats %+v", s)
	}
}

func TestReadersShareARequest(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	release := make(chan struct{})
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { <-release; return unit, nil }}
	u := NewUnits(src, newMemory())
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := fetch(t, u, refs[i%2]); err != nil {
				t.Error(err)
			}
		})
	}
	for { // until all wait for the one flight
		u.mu.Lock()
		f := u.flights[flightKey{unit: where}]
		all := f != nil && f.waiters == 20
		u.mu.Unlock()
		if all {
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(release)
	wg.Wait()
	if n := src.asked.Load(); n != 1 {
		t.Errorf("%d requests for one unit", n)
	}
}

func TestLastWaiterCancels(t *testing.T) {
	cancelled := make(chan struct{})
	src := &source{unit: func(ctx context.Context, _ chunk.Unit) ([]byte, error) {
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	}}
	u := NewUnits(src, newMemory())
	ctx, cancel := context.WithCancel(t.Context())
	_, refs := encode(t, "one")
	done := make(chan error)
	go func() {
		_, err := u.Fetch(ctx, refs[0], make([]byte, 3))
		done <- err
	}()
	for src.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the reader got %v", err)
	}
	<-cancelled
	u.Wait()
	if len(u.flights) != 0 {
		t.Error("a cancelled flight is still known")
	}
}

func TestWrongHintFallsBackToTheID(t *testing.T) {
	right, refs := encode(t, "wanted")
	wrong, _ := encode(t, "something else")
	for name, answer := range map[string]func() ([]byte, error){
		"another unit": func() ([]byte, error) { return wrong, nil },
		"gone":         func() ([]byte, error) { return nil, chunk.ErrNotFound },
		"forged": func() ([]byte, error) {
			enc, _ := zstd.NewWriter(nil)
			var b pack.UnitBuilder
			b.Add(refs[0].ID, []byte("forged"))
			return b.Encode(nil, enc), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := &source{
				unit:  func(context.Context, chunk.Unit) ([]byte, error) { return answer() },
				chunk: func(context.Context, chunk.ID) ([]byte, error) { return right, nil },
			}
			u := NewUnits(src, newMemory())
			if got, err := fetch(t, u, refs[0]); got != "wanted" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			u.Wait()
		})
	}
}

func TestNobodyHasIt(t *testing.T) {
	_, refs := encode(t, "one")
	u := NewUnits(&source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return nil, chunk.ErrNotFound }}, newMemory())
	if _, err := fetch(t, u, refs[0]); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	refs[0].Unit = chunk.Unit{}
	if _, err := fetch(t, u, refs[0]); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("without a hint: %v", err)
	}
}

// A source that lies or fails for a while costs retries, one that never stops an
// error; never a wrong byte.
func TestRetriesWithinBounds(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	flipped := bytes.Clone(unit)
	flipped[len(flipped)-3] ^= 0x10
	lies := []func() ([]byte, error){
		func() ([]byte, error) { return nil, errors.New("connection reset") },
		func() ([]byte, error) { return []byte("<html>503</html>"), nil },
		func() ([]byte, error) { return unit[:len(unit)/2], nil },
		func() ([]byte, error) { return nil, nil },
	}
	next := 0
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
		if next++; next <= len(lies) {
			return lies[next-1]()
		}
		return unit, nil
	}}
	u := NewUnits(src, newMemory())
	if got, err := fetch(t, u, refs[0]); got != "one" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	if s := u.Stats(); s.Retries != int64(len(lies)) {
		t.Errorf("%d retries for %d lies", s.Retries, len(lies))
	}

	always := func(context.Context, chunk.ID) ([]byte, error) { return flipped, nil }
	src = &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return nil, chunk.ErrNotFound }, chunk: always}
	u = NewUnits(src, newMemory())
	if got, err := fetch(t, u, refs[0]); err == nil {
		t.Errorf("a source that always lies: got %q", got)
	}
	if n := src.asked.Load(); n != 1+attempts {
		t.Errorf("asked %d times, want %d", n, 1+attempts)
	}
}

func TestFetchChecksTheBuffer(t *testing.T) {
	unit, refs := encode(t, "one")
	u := NewUnits(&source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}, newMemory())
	if _, err := u.Fetch(t.Context(), refs[0], make([]byte, 2)); err == nil {
		t.Error("a short buffer was accepted")
	}
	refs[0].Length = 2
	if _, err := u.Fetch(t.Context(), refs[0], make([]byte, 2)); err == nil {
		t.Error("a wrong length was accepted")
	}
}

func TestTier(t *testing.T) {
	unit, refs := encode(t, "a chunk of some length", "its neighbour")
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}
	cache := newMemory()
	u := NewUnits(src, cache)
	tier := NewTier(cache, u)
	got := make([]byte, 5)
	if tier.Cached(refs[0], 2, got) {
		t.Error("cached before it was fetched")
	}
	if err := tier.Read(t.Context(), refs[0], 2, got); err != nil || string(got) != "chunk" {
		t.Errorf("got %q, %v", got, err)
	}
	u.Wait()
	if !tier.Cached(refs[1], 4, got) || string(got) != "neigh" {
		t.Errorf("the neighbour is not cached: %q", got)
	}
	if err := tier.Warm(t.Context(), refs[1]); err != nil || src.asked.Load() != 1 {
		t.Errorf("warming what is there asked again (%v)", err)
	}
	if tier.Read(t.Context(), refs[0], 20, got) == nil || tier.Read(t.Context(), refs[0], -1, got) == nil {
		t.Error("a read beyond the chunk was accepted")
	}
}

func TestWarmStores(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	cache := newMemory()
	u := NewUnits(&source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}, cache)
	if err := u.Warm(t.Context(), refs[0]); err != nil {
		t.Fatal(err)
	}
	u.Wait()
	if !cache.Has(refs[0].ID) || !cache.Has(refs[1].ID) {
		t.Error("warmed, but not stored")
	}
}
