package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
)

// Share is one device's share of what a Fetcher may have in flight. It is safe for concurrent use.
type Share struct {
	fetcher *Fetcher
	streams atomic.Int64 // units of Stream that are in flight or not stored yet

	mu       sync.Mutex // guards received
	received map[string]int64

	// The gate's mu guards what follows.
	running counts
	waiting []*ticket // waiting flights; the first urgent one and the first background one are next
	faults  int       // tickets with this share among their faults
}

// Received returns the encoded bytes that this share has received, by origin. An answer counts
// for the share that was the first to ask for it.
func (s *Share) Received() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.received)
}

func (s *Share) count(origin string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received[origin] += bytes
}

// Cached fills dst with the chunk's bytes from offset on, and reports whether they were cached.
func (s *Share) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	return s.fetcher.cache.Read(ref, offset, dst)
}

// Has reports whether the chunk is believed to be cached.
func (s *Share) Has(id chunk.ID) bool { return s.fetcher.cache.Has(id) }

// IsLoading reports whether chunks of a previous process may still turn up in the cache.
func (s *Share) IsLoading() bool { return s.fetcher.cache.IsLoading() }

// Load reads cached chunks from disk into memory, as Cache.Load does.
func (s *Share) Load(refs []chunk.Ref) { s.fetcher.cache.Load(refs) }

// Read fills dst with the chunk's bytes from offset on, from the source. It is for chunks that
// Cached did not have. It retries until ctx ends, or until all origins have answered for
// missingTime that they do not have the chunk. Further reads of the chunk then fail at once, for up
// to maxPause. Read calls missed, if it is not nil, each time that the source answers without the
// chunk, and when Read fails at once: ref.Unit may be out of date.
func (s *Share) Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error {
	if offset < 0 || offset+len(dst) > int(ref.Length) {
		return fmt.Errorf("read %d bytes at %d of chunk %s, which has %d",
			len(dst), offset, ref.ID.Short(), ref.Length)
	}
	if missed == nil {
		missed = func() {}
	}
	retry := &s.fetcher.retry
	if err := retry.absent.known(ref); err != nil {
		missed()
		return err
	}
	return retry.do(ctx, ref, func() error { return s.try(ctx, ref, offset, dst, missed) })
}

// try asks for the unit that ref names. If that unit is missing or wrong, try asks for any unit
// that holds the chunk. If nobody has one, the error says why the unit has not helped.
func (s *Share) try(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error {
	var first error // why the unit has not helped
	if key := s.fetcher.keyOf(ref); !key.unit.IsZero() {
		err := s.fetch(ctx, key, ref, offset, dst)
		var unavailable Unavailable
		if err == nil || ctx.Err() != nil || !isAnswer(err) && !(errors.As(err, &unavailable) && unavailable.Missed()) {
			return err
		}
		if isAnswer(err) {
			missed()
		}
		first = err
	}
	err := s.fetch(ctx, flightKey{id: ref.ID}, ref, offset, dst)
	if err != nil && isAnswer(err) {
		missed()
	}
	if isMissing(err) && first != nil {
		err = fmt.Errorf("%v; no other unit has the chunk: %w", first, err) // it is missing, not wrong
	}
	return err
}

// fetch joins or starts one request, and reads the chunk from its answer.
func (s *Share) fetch(ctx context.Context, key flightKey, ref chunk.Ref, offset int, dst []byte) error {
	fetcher := s.fetcher
	w := wanted{key: key, route: fetcher.routeTo(key), ref: ref, share: s, size: typicalUnit}
	f, _ := fetcher.flights.join(w)
	if f == nil {
		if fetcher.cache.Read(ref, offset, dst) {
			return nil
		}
		w.uncached = true
		f, _ = fetcher.flights.join(w)
	}
	defer fetcher.flights.leave(f)
	fetcher.gate.want(s, &f.ticket, true)
	select {
	case <-f.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if f.err != nil {
		return f.err
	}
	plain, err := f.batch.Lookup(ref.ID)
	if err != nil {
		return fmt.Errorf("fetch chunk %s: %w", ref.ID, err)
	}
	if len(plain) != int(ref.Length) {
		return &chunk.InvalidError{What: "chunk " + ref.ID.String(),
			Err: fmt.Errorf("it has %d bytes, not %d", len(plain), ref.Length)}
	}
	copy(dst, plain[offset:])
	return nil
}

// Prefetch fetches the chunk's unit into the cache, in the background: no reader waits for it. It
// sends one request, and returns when the unit is stored or dropped. While the server fails, it
// sends none and returns an error.
func (s *Share) Prefetch(ctx context.Context, ref chunk.Ref) error {
	fetcher, key := s.fetcher, s.fetcher.keyOf(ref)
	route := fetcher.routeTo(key)
	if route.backoff.left() > 0 {
		return errFailing
	}
	f, _ := fetcher.flights.join(wanted{key: key, route: route, ref: ref, share: s, size: typicalUnit})
	if f == nil {
		return nil
	}
	defer fetcher.flights.leave(f)
	fetcher.gate.want(s, &f.ticket, false)
	select {
	case <-f.stored:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// BytesPerRTT returns about how many bytes can arrive from a unit's server while a reader waits for
// a first byte: 1.25 times the bandwidth-delay product. It returns 0 if the RTT is short or not
// known yet.
func (s *Share) BytesPerRTT(u chunk.Unit) int64 {
	to := s.fetcher.routeTo(flightKey{unit: u})
	s.fetcher.assume(to)
	return to.link.bytesPerRTT()
}
