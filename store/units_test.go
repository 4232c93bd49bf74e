package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	from  string // what it calls its origin
}

func (s *source) Unit(ctx context.Context, u chunk.Unit, take func(int64, io.Reader) error) (string, error) {
	s.asked.Add(1)
	return s.from, give(take)(s.unit(ctx, u))
}

func (s *source) Chunk(ctx context.Context, id chunk.ID, take func(int64, io.Reader) error) (string, error) {
	s.asked.Add(1)
	if s.chunk == nil {
		return "", fmt.Errorf("chunk %s: %w", id, chunk.ErrNotFound)
	}
	return s.from, give(take)(s.chunk(ctx, id))
}

func give(take func(int64, io.Reader) error) func([]byte, error) error {
	return func(b []byte, err error) error {
		if err != nil {
			return err
		}
		return take(int64(len(b)), bytes.NewReader(b))
	}
}

// nothing is a Cache that keeps nothing.
type nothing struct{}

func (nothing) Read(chunk.Ref, int, []byte) bool { return false }
func (nothing) Has(chunk.ID) bool                { return false }
func (nothing) Put(chunk.Ref, []byte)            {}

// newUnits returns Units that do not pause for long.
func newUnits(source Source, cache Cache) *Units {
	u := NewUnits(source, cache)
	u.pause = time.Millisecond
	return u
}

var where = chunk.Unit{Pack: chunk.ID{7}, N: 3}

var encoder, _ = zstd.NewWriter(nil)

// encode makes a unit of the chunks, and refs with the hint where.
func encode(t testing.TB, chunks ...string) (unit []byte, refs []chunk.Ref) {
	t.Helper()
	var b pack.UnitBuilder
	for _, c := range chunks {
		ref := chunk.Ref{ID: chunk.Sum([]byte(c)), Length: uint32(len(c)), Unit: where}
		b.Add(ref.ID, []byte(c))
		refs = append(refs, ref)
	}
	return b.Encode(nil, encoder), refs
}

func fetch(t testing.TB, u *Units, ref chunk.Ref) (string, error) {
	t.Helper()
	dst := make([]byte, ref.Length)
	err := u.Share().Read(t.Context(), ref, 0, dst)
	return string(dst), err
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
	u := newUnits(src, cache)
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
	u := newUnits(src, newMemory())
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
	u := newUnits(src, newMemory())
	ctx, cancel := context.WithCancel(t.Context())
	_, refs := encode(t, "one")
	done := make(chan error)
	go func() {
		err := u.Share().Read(ctx, refs[0], 0, make([]byte, 3))
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
			var b pack.UnitBuilder
			b.Add(refs[0].ID, []byte("forged"))
			return b.Encode(nil, encoder), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := &source{
				unit:  func(context.Context, chunk.Unit) ([]byte, error) { return answer() },
				chunk: func(context.Context, chunk.ID) ([]byte, error) { return right, nil },
			}
			u := newUnits(src, newMemory())
			share, got := u.Share(), make([]byte, refs[0].Length)
			if err := share.Read(t.Context(), refs[0], 0, got); string(got) != "wanted" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			if !share.Misled() || share.Misled() {
				t.Error("that the hint was wrong is not said, or twice")
			}
			u.Wait()
		})
	}
}

func TestNobodyHasIt(t *testing.T) {
	_, refs := encode(t, "one")
	u := newUnits(&source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return nil, chunk.ErrNotFound }}, newMemory())
	if _, err := fetch(t, u, refs[0]); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	refs[0].Unit = chunk.Unit{}
	if _, err := fetch(t, u, refs[0]); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("without a hint: %v", err)
	}
}

// A source that lies for a while costs retries, one that never stops an error;
// never a wrong byte.
func TestLiesCostRetries(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	other, _ := encode(t, "three")
	flipped := bytes.Clone(unit)
	flipped[len(flipped)-3] ^= 0x10
	for name, lie := range map[string][]byte{"page": []byte("<html>503</html>"), "half": unit[:len(unit)/2], "empty": nil, "other": other,
		"flipped": flipped, "longer": append(bytes.Clone(unit), 0), "longest": make([]byte, pack.MaxStored+1)} {
		lies := 2 * (answered - 1)
		answer := func() ([]byte, error) {
			if lies--; lies >= 0 {
				return lie, nil
			}
			return unit, nil
		}
		src := &source{
			unit:  func(context.Context, chunk.Unit) ([]byte, error) { return answer() },
			chunk: func(context.Context, chunk.ID) ([]byte, error) { return answer() },
		}
		u := newUnits(src, newMemory())
		if got, err := fetch(t, u, refs[0]); got != "one" || err != nil {
			t.Fatalf("%s: got %q, %v", name, got, err)
		}
		u.Wait()
		if s := u.Stats(); s.Retries != answered-1 || s.Invalid != 2*(answered-1) {
			t.Errorf("%s: %+v", name, s)
		}
		lies = 1000
		src.asked.Store(0)
		if got, err := fetch(t, newUnits(src, newMemory()), refs[0]); !errors.As(err, new(*chunk.InvalidError)) {
			t.Errorf("%s for ever: got %q, %v", name, got, err)
		}
		if n := src.asked.Load(); n != 2*answered {
			t.Errorf("%s: asked %d times, want %d", name, n, 2*answered)
		}
	}
}

// leaveAlone is a source's error that says how long to wait.
type leaveAlone time.Duration

func (leaveAlone) Error() string               { return "busy" }
func (d leaveAlone) RetryAfter() time.Duration { return time.Duration(d) }

// A reader waits for a source that fails as long as its context allows, and asks
// neither too often nor too seldom; one that wants to be left alone is.
func TestReadersWaitForTheSource(t *testing.T) {
	unit, refs := encode(t, "one")
	for _, c := range []struct {
		failure error
		asked   int64
	}{{errors.New("connection refused"), 20}, {leaveAlone(25 * time.Second), 4}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
				if time.Since(start) < time.Minute {
					return nil, c.failure
				}
				return unit, nil
			}}
			u := NewUnits(src, newMemory())
			if got, err := fetch(t, u, refs[0]); got != "one" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			u.Wait()
			if late := time.Since(start) - time.Minute; late > 15*time.Second || src.asked.Load() < c.asked-2 || src.asked.Load() > c.asked+10 {
				t.Errorf("%v: %s late, asked %d times", c.failure, late, src.asked.Load())
			}
		})
	}
}

// When nothing comes until the reader's deadline, it gets an error then, which
// says what was wrong.
func TestReadersWaitUntilTheirDeadline(t *testing.T) {
	_, refs := encode(t, "one")
	refused := errors.New("connection refused")
	asked := 0
	for name, unit := range map[string]func(context.Context, chunk.Unit) ([]byte, error){
		"refused": func(context.Context, chunk.Unit) ([]byte, error) { return nil, refused },
		"silent":  func(ctx context.Context, _ chunk.Unit) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() },
		"refused, then silent": func(ctx context.Context, _ chunk.Unit) ([]byte, error) {
			if asked++; asked < 3 {
				return nil, refused
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			start := time.Now()
			u := NewUnits(&source{unit: unit}, newMemory())
			err := u.Share().Read(ctx, refs[0], 0, make([]byte, 3))
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 100*time.Second || name != "silent" && !errors.Is(err, refused) {
				t.Errorf("%s: after %s: %v", name, time.Since(start), err)
			}
			u.Wait()
		})
	}
}

// Where one origin fails that may have the unit and another does not have it, the
// chunk is asked for by its ID.
func TestUnitThatSomeDoNotHave(t *testing.T) {
	unit, refs := encode(t, "one")
	src := &source{
		unit:  func(context.Context, chunk.Unit) ([]byte, error) { return nil, missed{} },
		chunk: func(context.Context, chunk.ID) ([]byte, error) { return unit, nil },
	}
	share, got := newUnits(src, newMemory()).Share(), make([]byte, refs[0].Length)
	if err := share.Read(t.Context(), refs[0], 0, got); string(got) != "one" || err != nil || src.asked.Load() != 2 {
		t.Errorf("got %q, %v", got, err)
	}
	if share.Misled() {
		t.Error("a hint is called wrong, and the origin that may have it is down")
	}
}

type missed struct{}

func (missed) Error() string { return "one is down, one does not have it" }
func (missed) Missed() bool  { return true }

// A unit that stays damaged where it is stored does not keep the chunk away:
// another unit may hold it.
func TestDamagedUnitFallsBackToTheID(t *testing.T) {
	unit, refs := encode(t, "one")
	src := &source{
		unit:  func(context.Context, chunk.Unit) ([]byte, error) { return []byte("rotten"), nil },
		chunk: func(context.Context, chunk.ID) ([]byte, error) { return unit, nil },
	}
	if got, err := fetch(t, newUnits(src, newMemory()), refs[0]); got != "one" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestReadsPartsOfChunks(t *testing.T) {
	unit, refs := encode(t, "a chunk of some length", "its neighbour")
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}
	u := newUnits(src, newMemory())
	got := make([]byte, 5)
	if u.Share().Cached(refs[0], 2, got) {
		t.Error("cached before it was fetched")
	}
	if err := u.Share().Read(t.Context(), refs[0], 2, got); err != nil || string(got) != "chunk" {
		t.Errorf("got %q, %v", got, err)
	}
	u.Wait()
	if !u.Share().Cached(refs[1], 4, got) || string(got) != "neigh" {
		t.Errorf("the neighbour is not cached: %q", got)
	}
	for _, offset := range []int{20, -1} {
		if u.Share().Read(t.Context(), refs[0], offset, got) == nil {
			t.Errorf("a read of 5 bytes at %d of 22 was accepted", offset)
		}
	}
	refs[0].Length = 40
	if newUnits(src, nothing{}).Share().Read(t.Context(), refs[0], 30, got) == nil {
		t.Error("a wrong length was accepted")
	}
}

// A fault that missed the cache while the chunk was on its way into it finds it
// there, and does not fetch it again.
func TestWhatIsThereIsNotFetched(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}
	u := newUnits(src, newMemory())
	for range 2 {
		if err := u.Share().Warm(t.Context(), refs[0]); err != nil {
			t.Fatal(err)
		}
		if got, err := fetch(t, u, refs[1]); got != "two" || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if n := src.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// slow is a cache whose disk hangs until it is told to go on.
type slow struct {
	*memory
	goOn chan struct{}
}

func (s slow) Put(ref chunk.Ref, plain []byte) {
	<-s.goOn
	s.memory.Put(ref, plain)
}

func TestReadersDoNotWaitForASlowCache(t *testing.T) {
	const size, fit = chunk.MaxLength, maxUnstored / chunk.MaxLength
	const n = 2 * fit
	cache := slow{newMemory(), make(chan struct{})}
	units := map[chunk.Unit][]byte{}
	var refs []chunk.Ref
	for i := range n {
		unit, r := encode(t, fmt.Sprint(strings.Repeat(" ", size-128), i)) // with its ID and the like, somewhat less than size
		r[0].Unit.N = uint32(i)
		units[r[0].Unit], refs = unit, append(refs, r[0])
	}
	u := newUnits(&source{unit: func(_ context.Context, w chunk.Unit) ([]byte, error) { return units[w], nil }}, cache)
	for _, ref := range refs {
		if _, err := fetch(t, u, ref); err != nil {
			t.Fatal(err)
		}
	}
	for u.Stats().Unstored < n-fit { // they are counted after the readers were answered
		time.Sleep(time.Millisecond)
	}
	close(cache.goOn)
	u.Wait()
	if got := len(cache.chunks); got != fit {
		t.Errorf("%d chunks were stored, want %d", got, fit)
	}
	if n := u.unstored.Load(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

func TestWarmStores(t *testing.T) {
	unit, refs := encode(t, "one", "two")
	cache := newMemory()
	u := newUnits(&source{unit: func(context.Context, chunk.Unit) ([]byte, error) { return unit, nil }}, cache)
	if err := u.Share().Warm(t.Context(), refs[0]); err != nil {
		t.Fatal(err)
	}
	if !cache.Has(refs[0].ID) || !cache.Has(refs[1].ID) {
		t.Error("warmed, but not stored")
	}
}

// While the source fails it is asked for readers alone.
func TestWarmLeavesAFailingSourceAlone(t *testing.T) {
	unit, refs := encode(t, "one")
	broken := true
	src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
		if broken {
			return nil, errors.New("connection refused")
		}
		return unit, nil
	}}
	cache := newMemory()
	s := newUnits(src, cache).Share()
	for range 5 {
		if s.Warm(t.Context(), refs[0]) == nil {
			t.Error("warm without a source")
		}
	}
	if n := src.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	broken = false
	if err := s.Read(t.Context(), refs[0], 0, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	s.units.Wait()
	clear(cache.chunks)
	if err := s.Warm(t.Context(), refs[0]); err != nil || !cache.Has(refs[0].ID) {
		t.Errorf("once it is back: %v", err)
	}
}

// What came is counted once, for the share that asked first, by the origin that gave
// it.
func TestReceived(t *testing.T) {
	unit, refs := encode(t, "chunk", "neighbour")
	synctest.Test(t, func(t *testing.T) {
		src := &source{from: "https://one.test"}
		src.unit = func(context.Context, chunk.Unit) ([]byte, error) {
			time.Sleep(time.Second)
			return unit, nil
		}
		u := newUnits(src, nothing{})
		first, second := u.Share(), u.Share()
		read := func(s *Share) {
			if err := s.Read(t.Context(), refs[0], 0, make([]byte, 5)); err != nil {
				t.Error(err)
			}
		}
		go read(first)
		synctest.Wait()
		read(second) // joins
		u.Wait()
		if a, b := first.Received(), second.Received(); len(a) != 1 || a[src.from] != int64(len(unit)) || len(b) != 0 {
			t.Errorf("of %d bytes the first received %v, the second %v", len(unit), a, b)
		}
		src.from = "https://two.test"
		read(second)
		u.Wait() // or it would be joined
		if err := second.Warm(t.Context(), refs[1]); err != nil {
			t.Error(err)
		}
		u.Wait()
		if b := second.Received(); len(b) != 1 || b[src.from] != 2*int64(len(unit)) {
			t.Errorf("of %d bytes twice the second received %v", len(unit), b)
		}
	})
}
