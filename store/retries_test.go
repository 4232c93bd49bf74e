package store

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/pack"
)

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

// loading is a cache in which a chunk turns up that nobody has put there.
type loading struct {
	*memory
	ended atomic.Bool
}

func (l *loading) IsLoading() bool { return !l.ended.Load() }

// No origin has the chunk any more, and the cache, which is loaded still, has it.
func TestNobodyHasItAndTheCacheLoads(t *testing.T) {
	_, refs := encode(t, "one")
	cache := &loading{memory: newMemory()}
	src := &source{}
	src.unit = func(context.Context, chunk.Unit) ([]byte, error) {
		if src.asked.Load() > 10 { // as often as the unit, the chunk is asked for by its ID
			cache.Put(refs[0], []byte("one"))
			cache.ended.Store(true)
		}
		return nil, chunk.ErrNotFound
	}
	if got, err := fetch(t, newUnits(src, cache), refs[0]); got != "one" || err != nil {
		t.Errorf("got %q, %v", got, err)
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
