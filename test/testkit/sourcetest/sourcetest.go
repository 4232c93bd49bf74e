// Package sourcetest is the conformance suite for store.Source. Every source of chunks must pass
// it.
package sourcetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/store"
	"lighter/test/testkit/cachetest"
)

// Run runs the suite. open returns a source with exactly these chunks, and a reference to each of
// them. If the source is a store.UnitSource, the references name units.
func Run(t *testing.T, open func(t *testing.T, chunks [][]byte) (store.Source, []chunk.Ref)) {
	chunks := [][]byte{[]byte("one"), bytes.Repeat([]byte("two"), 1000), {0}, bytes.Repeat([]byte{7}, chunk.MaxLength)}
	for name, test := range map[string]func(fixture, *testing.T){
		"Fetch": fixture.fetch, "FetchUnit": fixture.fetchUnit, "Missing": fixture.missing,
		"Refused": fixture.refused, "Ended": fixture.ended, "Concurrent": fixture.concurrent,
		"Units": fixture.units,
	} {
		t.Run(name, func(t *testing.T) {
			source, refs := open(t, chunks)
			test(fixture{source, refs, chunks}, t)
		})
	}
}

type fixture struct {
	source store.Source
	refs   []chunk.Ref
	chunks [][]byte
}

// checkAnswer reads an answer, and returns an error unless the answer contains the chunk.
func checkAnswer(a store.Answer, ref chunk.Ref, want []byte) error {
	b, err := io.ReadAll(a.Body)
	if err != nil {
		return err
	}
	if a.Length >= 0 && a.Length != int64(len(b)) {
		return fmt.Errorf("the answer's length: got %d, want %d, as in its body", a.Length, len(b))
	}
	if a.Decode != nil {
		batch, err := a.Decode(b)
		if err != nil {
			return err
		}
		if b, err = batch.Lookup(ref.ID); err != nil {
			return err
		}
	}
	if !bytes.Equal(b, want) {
		return errors.New("the answer contains other bytes than the chunk's")
	}
	return nil
}

func (f fixture) fetch(t *testing.T) {
	for i, ref := range f.refs {
		ref.Unit = chunk.Unit{}
		err := f.source.Fetch(t.Context(), ref, func(a store.Answer) error { return checkAnswer(a, ref, f.chunks[i]) })
		if err != nil {
			t.Errorf("Fetch of chunk %d: %v", i, err)
		}
	}
}

func (f fixture) fetchUnit(t *testing.T) {
	source, ok := f.source.(store.UnitSource)
	if !ok {
		return // the interface is optional
	}
	for i, ref := range f.refs {
		err := source.FetchUnit(t.Context(), ref.Unit,
			func(a store.Answer) error { return checkAnswer(a, ref, f.chunks[i]) })
		if err != nil {
			t.Errorf("FetchUnit of the unit of chunk %d: %v", i, err)
		}
	}
	refuse := func(store.Answer) error { return errors.New("take was called") }
	if err := source.FetchUnit(t.Context(), chunk.Unit{Pack: chunk.ID{1}}, refuse); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("FetchUnit of an unknown unit: got %v, want ErrNotFound", err)
	}
}

func (f fixture) missing(t *testing.T) {
	unknown := chunk.Ref{ID: chunk.Sum([]byte("unknown")), Length: 7}
	refuse := func(store.Answer) error { return errors.New("take was called") }
	if err := f.source.Fetch(t.Context(), unknown, refuse); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("Fetch of an unknown chunk: got %v, want ErrNotFound", err)
	}
}

// refused checks that Fetch returns an InvalidError if its callback take returns one for every
// answer.
func (f fixture) refused(t *testing.T) {
	wrong := &chunk.InvalidError{What: "the answer", Err: errors.New("wrong")}
	err := f.source.Fetch(t.Context(), f.refs[0], func(store.Answer) error { return wrong })
	if got := new(chunk.InvalidError); !errors.As(err, &got) {
		t.Errorf("Fetch whose answers are all refused: got %v, want an InvalidError", err)
	}
}

// ended checks that Fetch calls take no more after take has returned any other error, and returns
// this error.
func (f fixture) ended(t *testing.T) {
	full, calls := errors.New("no memory"), 0
	err := f.source.Fetch(t.Context(), f.refs[0], func(store.Answer) error { calls++; return full })
	if !errors.Is(err, full) || calls != 1 {
		t.Errorf("Fetch after take failed: got %v after %d calls, want %v after 1", err, calls, full)
	}
}

func (f fixture) concurrent(t *testing.T) {
	var work sync.WaitGroup
	for i, ref := range f.refs {
		for range 8 {
			work.Go(func() {
				err := f.source.Fetch(t.Context(), ref,
					func(a store.Answer) error { return checkAnswer(a, ref, f.chunks[i]) })
				if err != nil {
					t.Errorf("Fetch of chunk %d: %v", i, err)
				}
			})
		}
	}
	work.Wait()
}

// units checks that store.Fetcher reads all chunks from the source, with at most as many requests
// as there are chunks.
func (f fixture) units(t *testing.T) {
	cache := cachetest.NewMemory()
	units := store.NewFetcher(f.source, cache)
	for i, ref := range f.refs {
		got := make([]byte, ref.Length)
		if err := units.Share().Read(t.Context(), ref, 0, got, nil); err != nil || !bytes.Equal(got, f.chunks[i]) {
			t.Errorf("Read of chunk %d: got %v or other bytes", i, err)
		}
		units.Wait()
		if !cache.Has(ref.ID) {
			t.Errorf("chunk %d is not cached after Read", i)
		}
	}
	if n := units.Stats().Requests; n > int64(len(f.refs)) {
		t.Errorf("requests for %d chunks: got %d, want no more", len(f.refs), n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := units.Share().Read(ctx, f.refs[0], 0, make([]byte, 1), nil); err != nil &&
		!errors.Is(err, context.Canceled) {
		t.Errorf("Read with a context that has ended: got %v, want no error or %v", err, context.Canceled)
	}
}
