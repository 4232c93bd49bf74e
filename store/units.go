// Package store promises the bytes of chunks, wherever they are: Units looks on
// this machine's disk first, asks a source for the unit that a chunk lies in and
// keeps its neighbours, and each chunk that it hands out has been verified.
//
// It refuses to know what chunks are for. A source that lies costs retries; a
// cache that fails costs a fetch; neither costs a wrong byte.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
)

// Cache is what Units need of a cache (store/disk has one). It never fails: a
// chunk that cannot be read is not there. It may be a LoadingCache.
type Cache interface {
	// Read fills dst with the chunk's bytes from offset on and tells whether
	// it could.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Has tells whether the chunk is believed to be there.
	Has(id chunk.ID) bool
	// Load has chunks that are there, and of which somebody will ask for all, read from
	// the disk into memory, and returns when they are.
	Load(refs []chunk.Ref)
	// Put stores a verified chunk, if it can.
	Put(ref chunk.Ref, plain []byte)
}

// LoadingCache is a Cache that opens while it is used already.
type LoadingCache interface {
	Cache
	// IsLoading reports whether chunks that are missing may turn up without a Put.
	IsLoading() bool
}

// Bounds of Units; gate.go has those of requests in flight.
const (
	// maxUnstored bounds the bytes, plain, of units that have arrived and are not
	// stored yet. A cache that is slower than the network gets fewer chunks;
	// readers do not wait for it.
	maxUnstored = 32 << 20
	// storers is how many units are verified and stored at once beside the
	// readers' work.
	storers = 2
	// firstPause and maxPause bound the pauses between a reader's tries, which
	// double. It tries until its context ends, but only for missingTime after all
	// origins began to say, each time, that they do not have the chunk: hubs that start
	// or whose bucket is exchanged say that too.
	firstPause  = 100 * time.Millisecond
	maxPause    = 5 * time.Second
	missingTime = 10 * time.Second
)

// Units gives chunks, through its shares: from the cache, or from a Source that
// it asks for units. Readers of chunks of one unit share one request; a reader
// has its answer before anything is stored; then the unit's other chunks are
// verified and stored too. It is safe for concurrent use.
type Units struct {
	source Source
	cache  Cache
	gate   gate
	link   link
	decode chan struct{} // one for each unit that is decoded at a time
	store  chan struct{}
	pause  time.Duration // firstPause, but in tests

	fetched  atomic.Int64 // encoded bytes
	requests atomic.Int64
	retries  atomic.Int64
	invalid  atomic.Int64
	rests    atomic.Int64 // until when the source is asked for readers alone, in ns
	unstored atomic.Int64 // bytes of units that have arrived and are not stored yet
	dropped  atomic.Int64

	mu      sync.Mutex // guards flights
	flights map[flightKey]*flight
	idle    sync.WaitGroup // flights that are still storing
}

// NewUnits puts cache before source.
func NewUnits(source Source, cache Cache) *Units {
	u := &Units{source: source, cache: cache, flights: map[flightKey]*flight{},
		decode: make(chan struct{}, runtime.GOMAXPROCS(0)), store: make(chan struct{}, storers), pause: firstPause}
	u.gate.calm = u.link.wake
	return u
}

// UnitsStats are figures since the start, and of now.
type UnitsStats struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`    // encoded, as received
	Retries  int64 `json:"retries"`  // requests that were made again
	Invalid  int64 `json:"invalid"`  // answers that were not what was asked for
	Unstored int64 `json:"unstored"` // units that the cache was too slow for

	InFlight GateStats `json:"inFlight"`
	Link     LinkStats `json:"link"`
	Storing  int64     `json:"storingBytes"` // plain, of units that have arrived and are not stored yet
}

// Stats returns the figures.
func (u *Units) Stats() UnitsStats {
	return UnitsStats{Requests: u.requests.Load(), Bytes: u.fetched.Load(), Retries: u.retries.Load(),
		Invalid: u.invalid.Load(), Unstored: u.dropped.Load(), InFlight: u.gate.stats(), Link: u.link.stats(), Storing: u.unstored.Load()}
}

// Share returns a new share of what Units may fetch at a time: whatever is stuck
// in others, this one gets on.
func (u *Units) Share() *Share { return &Share{units: u, received: map[string]int64{}} }

// Received returns the bytes that came for this share, encoded, by the origin that
// gave them: of units that it was the first to ask for, since it was made.
func (s *Share) Received() map[string]int64 {
	s.units.mu.Lock()
	defer s.units.mu.Unlock()
	return maps.Clone(s.received)
}

// Cached fills dst with the chunk's bytes from offset on if they are on this
// machine.
func (s *Share) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	return s.units.cache.Read(ref, offset, dst)
}

// Has tells whether the chunk is believed to be on this machine.
func (s *Share) Has(id chunk.ID) bool { return s.units.cache.Has(id) }

// Load has those of the chunks that are on this machine's disk read into memory, for
// who will ask for all of them, and returns when they are.
func (s *Share) Load(refs []chunk.Ref) { s.units.cache.Load(refs) }

// Read fills dst with the chunk's bytes from offset on, from the source: it is
// for what Cached did not have. It tries until ctx ends, or until all origins have said
// for some seconds that they do not have the chunk. Each time that the origins answered
// and the chunk was not where ref.Unit says, or was not found by its ID, Read calls
// missed, if that is not nil, and goes on.
func (s *Share) Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error {
	if offset < 0 || offset+len(dst) > int(ref.Length) {
		return fmt.Errorf("read %d bytes at %d of chunk %s, which has %d", len(dst), offset, ref.ID.Short(), ref.Length)
	}
	if missed == nil {
		missed = func() {}
	}
	pause := s.units.pause
	var before error
	var missing time.Time // since when all origins say that they do not have it; zero: they do not
	for {
		err := s.readAnywhere(ctx, ref, offset, dst, missed)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return endOf(ctx, cmp.Or(before, err))
		}
		before = err
		switch {
		case !nobodyHas(err) || s.units.isLoading():
			missing = time.Time{}
		case missing.IsZero():
			missing = time.Now()
		case time.Since(missing) >= missingTime:
			return err
		}
		s.units.retries.Add(1)
		wait := pause/2 + rand.N(pause/2) // readers that failed together do not come back together
		var busy Unavailable
		if errors.As(err, &busy) {
			wait = max(wait, busy.RetryAfter())
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return endOf(ctx, err)
		}
		pause = min(2*pause, maxPause)
	}
}

// endOf says why a read ended before its time, and what went wrong until then.
func endOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fmt.Errorf("%w; before that: %w", cause, err)
	}
	return err
}

// notThere tells whether the origins have answered, and not with the chunk.
func notThere(err error) bool {
	return errors.Is(err, chunk.ErrNotFound) || errors.As(err, new(*chunk.InvalidError))
}

// nobodyHas tells whether all origins say that they do not have the chunk. A wrong unit
// does not have it either, but says nothing of others.
func nobodyHas(err error) bool {
	return errors.Is(err, chunk.ErrNotFound) && !errors.As(err, new(*chunk.InvalidError))
}

// isLoading tells whether a chunk that no origin has may still turn up in the cache.
func (u *Units) isLoading() bool {
	c, ok := u.cache.(LoadingCache)
	return ok && c.IsLoading()
}

// readAnywhere asks for the unit of which the hint says that it holds the chunk,
// then for any.
func (s *Share) readAnywhere(ctx context.Context, ref chunk.Ref, offset int, dst []byte, missed func()) error {
	if key := s.units.keyOf(ref); !key.unit.IsZero() {
		err := s.readOnce(ctx, key, ref, offset, dst)
		var some Unavailable
		if err == nil || ctx.Err() != nil || !notThere(err) && !(errors.As(err, &some) && some.Missed()) {
			return err
		}
		if notThere(err) {
			missed()
		}
	}
	err := s.readOnce(ctx, flightKey{id: ref.ID}, ref, offset, dst)
	if err != nil && notThere(err) {
		missed()
	}
	return err
}

func (s *Share) readOnce(ctx context.Context, key flightKey, ref chunk.Ref, offset int, dst []byte) error {
	u := s.units
	f := u.join(s, key, ref)
	if f == nil {
		if u.cache.Read(ref, offset, dst) {
			return nil
		}
		f = u.joinOrStart(s, key, ref) // it was damaged
	}
	defer u.leave(f)
	u.gate.want(s, &f.place, true)
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

var errFailing = errors.New("the source fails: readers go first")

// Warm brings the chunk's unit into the cache, for nobody who waits: it asks
// once, when no reader waits for its turn, and returns when the unit is stored.
// For a while after the source has failed it does not: readers go first.
func (s *Share) Warm(ctx context.Context, ref chunk.Ref) error {
	if time.Now().UnixNano() < s.units.rests.Load() {
		return errFailing
	}
	f := s.units.join(s, s.units.keyOf(ref), ref)
	if f == nil {
		return nil
	}
	defer s.units.leave(f)
	s.units.gate.want(s, &f.place, false)
	select {
	case <-f.stored:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Wait returns when nothing is on its way any more. It is for shutting down.
func (u *Units) Wait() { u.idle.Wait() }
