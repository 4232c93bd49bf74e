package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// If the unit that a reference names does not have the chunk, the chunk is asked for by its ID.
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
			u := newFetcher(src, newMemory())
			missed, got := 0, make([]byte, refs[0].Length)
			if err := u.Share().Read(t.Context(), refs[0], 0, got, func() { missed++ }); string(got) != "wanted" ||
				err != nil {
				t.Errorf("got %q, %v; want \"wanted\"", got, err)
			}
			if missed != 1 {
				t.Errorf("missed was called %d times, want once", missed)
			}
			u.Wait()
		})
	}
}

// If no origin has the chunk, a reader asks again until missingTime has passed. The time begins
// anew when an origin answers something else. The error says what was asked for first: the unit.
func TestNobodyHasIt(t *testing.T) {
	_, refs := encode(t, "one")
	gone := func(context.Context, chunk.Unit) ([]byte, error) {
		return nil, fmt.Errorf("GET the unit: %w", chunk.ErrNotFound)
	}
	for name, hint := range map[string]chunk.Unit{"with a hint": where, "without": {}} {
		refs[0].Unit = hint
		synctest.Test(t, func(t *testing.T) {
			start, missed := time.Now(), 0
			src := &source{unit: gone}
			err := NewFetcher(src, newMemory()).Share().Read(t.Context(), refs[0], 0, make([]byte, 3),
				func() { missed++ })
			if took := time.Since(start); !errors.Is(err, chunk.ErrNotFound) || took < missingTime ||
				took > missingTime+maxPause {
				t.Errorf("%s: after %s got %v, want ErrNotFound soon after missingTime", name, took, err)
			}
			if err != nil && strings.Contains(err.Error(), "GET the unit") == hint.IsZero() {
				t.Errorf("%s: got %v, want that it names the unit if there is one", name, err)
			}
			if missed < 5 || int64(missed) != src.asked.Load() {
				t.Errorf("%s: got %d requests, %d calls of missed; want as many, at least 5",
					name, src.asked.Load(), missed)
			}
		})
	}
	refs[0].Unit = where
	synctest.Test(t, func(t *testing.T) {
		start, failed := time.Now(), false
		src := &source{}
		src.unit = func(ctx context.Context, u chunk.Unit) ([]byte, error) {
			if time.Since(start) > missingTime/2 && !failed {
				failed = true
				return nil, errors.New("connection refused")
			}
			return gone(ctx, u)
		}
		_, err := fetch(t, NewFetcher(src, noCache{}), refs[0])
		if took := time.Since(start); !errors.Is(err, chunk.ErrNotFound) || !failed ||
			took < missingTime+missingTime/2 {
			t.Errorf("failed %v, after %s got %v; want ErrNotFound, later than 1.5 times missingTime",
				failed, took, err)
		}
	})
}

// A second read of a chunk that no origin has fails at once. However often such a chunk is read,
// few requests are sent. When an origin has the chunk again, reads get it within seconds.
func TestRepeatedReadsOfWhatNobodyHas(t *testing.T) {
	unit, refs := encode(t, "one")
	synctest.Test(t, func(t *testing.T) {
		back := false
		src := &source{}
		src.unit = func(context.Context, chunk.Unit) ([]byte, error) {
			if back {
				return unit, nil
			}
			return nil, chunk.ErrNotFound
		}
		refs[0].Unit = where
		s, missed := NewFetcher(src, noCache{}).Share(), 0
		read := func() error {
			return s.Read(t.Context(), refs[0], 0, make([]byte, 3), func() { missed++ })
		}
		if err := read(); !errors.Is(err, chunk.ErrNotFound) {
			t.Fatal(err)
		}
		start, asked := time.Now(), src.asked.Load()
		for range 20 {
			missed = 0
			if err := read(); !errors.Is(err, chunk.ErrNotFound) || missed == 0 {
				t.Errorf("a repeated read: got %v, %d calls of missed; want ErrNotFound and a call", err, missed)
			}
			time.Sleep(time.Second)
		}
		if took, more := time.Since(start), src.asked.Load()-asked; took > 21*time.Second || more < 2 || more > 12 {
			t.Errorf("20 reads, one a second, took %v and made %d requests, want at most 21 s, and 2 to 12 requests",
				took, more)
		}
		other := refs[0]
		other.Unit.N++ // newer locations
		before := src.asked.Load()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Read(ctx, other, 0, make([]byte, 3), nil); err == nil || src.asked.Load() == before {
			t.Errorf("a read from another unit: got %v, %d requests; want an error after some",
				err, src.asked.Load()-before)
		}
		back = true
		time.Sleep(maxPause)
		if err := read(); err != nil {
			t.Errorf("an origin has the chunk again: got %v, want no error", err)
		}
	})
}

// loading is a cache that loads until it has ended.
type loading struct {
	*memory
	ended atomic.Bool
}

func (l *loading) IsLoading() bool { return !l.ended.Load() }

// No origin has the chunk any more, but the cache has it and is still loading.
func TestNobodyHasItAndTheCacheLoads(t *testing.T) {
	_, refs := encode(t, "one")
	cache := &loading{memory: newMemory()}
	src := &source{}
	src.unit = func(context.Context, chunk.Unit) ([]byte, error) {
		if src.asked.Load() > 10 { // half of them by ID
			cache.Put(refs[0], []byte("one"))
			cache.ended.Store(true)
		}
		return nil, chunk.ErrNotFound
	}
	if got, err := fetch(t, newFetcher(src, cache), refs[0]); got != "one" || err != nil {
		t.Errorf("got %q, %v; want \"one\"", got, err)
	}
}

// If a source lies for a while, reads are retried. If it always lies, a read fails at its deadline.
// No reader gets a wrong byte.
func TestLiesCostRetries(t *testing.T) {
	const tries = 3
	unit, refs := encode(t, "one", "two")
	other, _ := encode(t, "three")
	flipped := bytes.Clone(unit)
	flipped[len(flipped)-3] ^= 0x10
	for name, lie := range map[string][]byte{"page": []byte("<html>503</html>"), "half": unit[:len(unit)/2],
		"empty": nil, "other": other,
		"flipped": flipped, "longer": append(bytes.Clone(unit), 0), "longest": make([]byte, pack.MaxStored+1)} {
		lies := 2 * (tries - 1)
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
		u := newFetcher(src, newMemory())
		if got, err := fetch(t, u, refs[0]); got != "one" || err != nil {
			t.Fatalf("%s: got %q, %v; want \"one\"", name, got, err)
		}
		u.Wait()
		if s := u.Stats(); s.Retries != tries-1 || s.Invalid != 2*(tries-1) {
			t.Errorf("%s: got %+v, want %d retries and twice as many invalid answers", name, s, tries-1)
		}
		lies = 1000
		src.asked.Store(0)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			start, u := time.Now(), NewFetcher(src, newMemory())
			err := u.Share().Read(ctx, refs[0], 0, make([]byte, 3), nil)
			if !errors.As(err, new(*chunk.InvalidError)) || time.Since(start) != 100*time.Second {
				t.Errorf("%s for ever: after %s got %v, want an InvalidError after 100 s", name, time.Since(start), err)
			}
			if n := src.asked.Load(); n < 40 || n > 100 {
				t.Errorf("%s: got %d requests, want 40 to 100", name, n)
			}
			u.Wait()
		})
	}
}

// leaveAlone is an Unavailable error that says how long to wait.
type leaveAlone time.Duration

func (leaveAlone) Error() string               { return "busy" }
func (d leaveAlone) RetryAfter() time.Duration { return time.Duration(d) }
func (leaveAlone) Missed() bool                { return false }

// A reader waits for a failing source until its context ends, and asks neither too often nor too
// rarely. It respects RetryAfter, up to maxPause.
func TestReadersWaitForTheSource(t *testing.T) {
	unit, refs := encode(t, "one")
	for _, c := range []struct {
		failure error
		asked   int64
	}{{errors.New("connection refused"), 20}, {leaveAlone(time.Hour), 12}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			src := &source{unit: func(context.Context, chunk.Unit) ([]byte, error) {
				if time.Since(start) < time.Minute {
					return nil, c.failure
				}
				return unit, nil
			}}
			u := NewFetcher(src, newMemory())
			if got, err := fetch(t, u, refs[0]); got != "one" || err != nil {
				t.Errorf("got %q, %v; want \"one\"", got, err)
			}
			u.Wait()
			if late := time.Since(start) - time.Minute; late > 15*time.Second || src.asked.Load() < c.asked-2 ||
				src.asked.Load() > c.asked+10 {
				t.Errorf("%v: got the chunk %s late, after %d requests; want at most 15 s, about %d requests",
					c.failure, late, src.asked.Load(), c.asked)
			}
		})
	}
}

// A reader that gets nothing until its deadline gets an error with the cause.
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
			u := NewFetcher(&source{unit: unit}, newMemory())
			err := u.Share().Read(ctx, refs[0], 0, make([]byte, 3), nil)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 100*time.Second || name != "silent" &&
				!errors.Is(err, refused) {
				t.Errorf("%s: after %s got %v, want the deadline's error and the cause after 100 s",
					name, time.Since(start), err)
			}
			u.Wait()
		})
	}
}

// If one origin fails and another does not have the unit, the chunk is asked for by its ID.
func TestUnitThatOneOriginLacks(t *testing.T) {
	unit, refs := encode(t, "one")
	src := &source{
		unit:  func(context.Context, chunk.Unit) ([]byte, error) { return nil, missed{} },
		chunk: func(context.Context, chunk.ID) ([]byte, error) { return unit, nil },
	}
	share, got := newFetcher(src, newMemory()).Share(), make([]byte, refs[0].Length)
	called := func() { t.Error("missed was called, although the origin that may have the unit is down") }
	if err := share.Read(t.Context(), refs[0], 0, got, called); string(got) != "one" || err != nil ||
		src.asked.Load() != 2 {
		t.Errorf("got %q, %v; want \"one\" after two requests", got, err)
	}
}

// missed is the error of a source of which one origin fails and another lacks the unit.
type missed struct{}

func (missed) Error() string             { return "one is down, one does not have it" }
func (missed) Missed() bool              { return true }
func (missed) RetryAfter() time.Duration { return 0 }

// If a unit is damaged, the chunk is read from another unit that holds it.
func TestDamagedUnitFallsBackToTheID(t *testing.T) {
	unit, refs := encode(t, "one")
	src := &source{
		unit:  func(context.Context, chunk.Unit) ([]byte, error) { return []byte("rotten"), nil },
		chunk: func(context.Context, chunk.ID) ([]byte, error) { return unit, nil },
	}
	if got, err := fetch(t, newFetcher(src, newMemory()), refs[0]); got != "one" || err != nil {
		t.Errorf("got %q, %v; want \"one\"", got, err)
	}
}

// If a unit is damaged, and nothing else holds the chunk, the error says both.
func TestDamagedUnitThatNothingReplaces(t *testing.T) {
	_, refs := encode(t, "one")
	synctest.Test(t, func(t *testing.T) {
		rotten := func(context.Context, chunk.Unit) ([]byte, error) { return []byte("rotten"), nil }
		start := time.Now()
		_, err := fetch(t, NewFetcher(&source{unit: rotten}, noCache{}), refs[0])
		if took := time.Since(start); !errors.Is(err, chunk.ErrNotFound) || took > missingTime+maxPause {
			t.Errorf("after %s got %v, want ErrNotFound soon after missingTime", took, err)
		}
		if want := "is invalid"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	})
}
