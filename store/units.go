// Package store promises the bytes of chunks, wherever they are: Units looks on
// this machine's disk first, asks a source for the unit that a chunk lies in and
// keeps its neighbours, and each chunk that it hands out has been verified.
//
// It refuses to know what chunks are for. A source that lies costs retries; a
// cache that fails costs a fetch; neither costs a wrong byte.
package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// Cache is what Units need of a cache (store/disk has one). It never fails: a
// chunk that cannot be read is not there.
type Cache interface {
	// Read fills dst with the chunk's bytes from offset on and tells whether
	// it could.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Has tells whether the chunk is believed to be there.
	Has(id chunk.ID) bool
	// Put stores a verified chunk, if it can.
	Put(ref chunk.Ref, plain []byte)
}

// Source gives encoded units, unverified. chunk.ErrNotFound (wrapped) says that
// it works but has no such unit.
type Source interface {
	// Unit returns the unit of that name.
	Unit(ctx context.Context, u chunk.Unit) ([]byte, error)
	// Chunk returns some unit that holds the chunk.
	Chunk(ctx context.Context, id chunk.ID) ([]byte, error)
}

// Bounds of Units.
const (
	// maxFlights bounds the units that are asked for at a time, maxUnstored those
	// that have arrived and are not stored yet; each has at most pack.MaxPlain
	// bytes plain and usually an eighth of that. A cache that is slower than the
	// network gets fewer chunks; readers do not wait for it.
	maxFlights  = 128
	maxUnstored = 128
	// storers is how many units are verified and stored at once beside the
	// readers' work.
	storers = 2
	// attempts, firstPause, maxPause: an origin that fails is asked again
	// after pauses that double. One that answers with something else than the
	// unit is asked just once more.
	attempts        = 6
	invalidAttempts = 2
	firstPause      = 100 * time.Millisecond
	maxPause        = 5 * time.Second
)

// Units gives chunks: from the cache, or from a Source that it asks for units.
// Readers of chunks of one unit share one request; a reader has its answer
// before anything is stored; then the unit's other chunks are verified and
// stored too. It is safe for concurrent use.
type Units struct {
	source Source
	cache  Cache
	slots  chan struct{}
	store  chan struct{}
	pause  time.Duration // firstPause, but in tests

	fetched  atomic.Int64 // encoded bytes
	requests atomic.Int64
	retries  atomic.Int64
	invalid  atomic.Int64
	unstored atomic.Int64 // units that have arrived and are not stored yet
	dropped  atomic.Int64

	mu      sync.Mutex // guards flights
	flights map[flightKey]*flight
	idle    sync.WaitGroup // flights that are still storing
}

// flightKey names what is being fetched: a unit, or a chunk whose unit is not
// known.
type flightKey struct {
	unit chunk.Unit
	id   chunk.ID
}

// flight is one request for a unit, and its way into the cache.
type flight struct {
	key     flightKey
	cancel  context.CancelFunc
	waiters int           // guarded by Units.mu; at zero before done the flight is cancelled
	done    chan struct{} // closed when unit or err is set
	stored  chan struct{} // closed when nothing more happens
	unit    *pack.Unit
	err     error
}

// NewUnits puts cache before source.
func NewUnits(source Source, cache Cache) *Units {
	return &Units{source: source, cache: cache, flights: map[flightKey]*flight{},
		slots: make(chan struct{}, maxFlights), store: make(chan struct{}, storers), pause: firstPause}
}

// UnitsStats are figures since the start.
type UnitsStats struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`    // encoded, as received
	Retries  int64 `json:"retries"`  // requests that were made again
	Invalid  int64 `json:"invalid"`  // answers that were not what was asked for
	Unstored int64 `json:"unstored"` // units that the cache was too slow for
}

// Stats returns the figures.
func (u *Units) Stats() UnitsStats {
	return UnitsStats{Requests: u.requests.Load(), Bytes: u.fetched.Load(), Retries: u.retries.Load(),
		Invalid: u.invalid.Load(), Unstored: u.dropped.Load()}
}

// Cached fills dst with the chunk's bytes from offset on if they are on this
// machine.
func (u *Units) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	return u.cache.Read(ref, offset, dst)
}

// Has tells whether the chunk is believed to be on this machine.
func (u *Units) Has(id chunk.ID) bool { return u.cache.Has(id) }

// Read fills dst with the chunk's bytes from offset on, from the source: it is
// for what Cached did not have.
func (u *Units) Read(ctx context.Context, ref chunk.Ref, offset int, dst []byte) error {
	if offset < 0 || offset+len(dst) > int(ref.Length) {
		return fmt.Errorf("read %d bytes at %d of chunk %s, which has %d", len(dst), offset, ref.ID.Short(), ref.Length)
	}
	for _, key := range keysOf(ref) {
		err := u.read(ctx, key, ref, offset, dst)
		if !errors.Is(err, errElsewhere) {
			return err
		}
	}
	return fmt.Errorf("fetch chunk %s: %w", ref.ID, chunk.ErrNotFound)
}

// errElsewhere says that the hint was wrong: the unit does not hold the chunk,
// or not what the chunk's ID says, or is damaged or gone.
var errElsewhere = errors.New("the chunk is not in the unit")

// keysOf returns where to look for a chunk: in its unit, if that is known, then
// anywhere.
func keysOf(ref chunk.Ref) []flightKey {
	if ref.Unit.IsZero() {
		return []flightKey{{id: ref.ID}}
	}
	return []flightKey{{unit: ref.Unit}, {id: ref.ID}}
}

// read asks for a unit, again and again within bounds, and takes the chunk out
// of it.
func (u *Units) read(ctx context.Context, key flightKey, ref chunk.Ref, offset int, dst []byte) error {
	pause, invalid := u.pause, 0
	for attempt := 1; ; attempt++ {
		err := u.readOnce(ctx, key, ref, offset, dst)
		if errors.As(err, new(*chunk.InvalidError)) {
			invalid++
		}
		switch {
		case err == nil || errors.Is(err, errElsewhere) || ctx.Err() != nil:
			return err
		case invalid == invalidAttempts && !key.unit.IsZero():
			return errElsewhere
		case attempt == attempts:
			return err
		}
		u.retries.Add(1)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxPause)
	}
}

func (u *Units) readOnce(ctx context.Context, key flightKey, ref chunk.Ref, offset int, dst []byte) error {
	f := u.join(key, ref.ID)
	if f == nil {
		if u.cache.Read(ref, offset, dst) {
			return nil
		}
		f = u.join(key, chunk.ID{}) // it was damaged
	}
	defer u.leave(f)
	select {
	case <-f.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case errors.Is(f.err, chunk.ErrNotFound):
		return errElsewhere
	case f.err != nil:
		return f.err
	}
	plain, err := f.unit.Lookup(ref.ID)
	if err != nil {
		return errElsewhere
	}
	if len(plain) != int(ref.Length) {
		return &chunk.InvalidError{What: "chunk " + ref.ID.String(),
			Err: fmt.Errorf("it has %d bytes, not %d", len(plain), ref.Length)}
	}
	copy(dst, plain[offset:])
	return nil
}

// Warm brings the chunk's unit into the cache, for nobody who waits: it asks
// once, and returns when the unit is stored.
func (u *Units) Warm(ctx context.Context, ref chunk.Ref) error {
	f := u.join(keysOf(ref)[0], ref.ID)
	if f == nil {
		return nil
	}
	defer u.leave(f)
	select {
	case <-f.stored:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join returns the flight of that key, starting it if there is none, unless the
// chunk is in the cache by now: then it returns nil.
func (u *Units) join(key flightKey, unless chunk.ID) *flight {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.flights[key]; f != nil {
		f.waiters++
		return f
	}
	if u.cache.Has(unless) {
		return nil
	}
	// Detached from the caller that happens to be first: others may join.
	// leave cancels it when the last of them has gone.
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{key: key, cancel: cancel, waiters: 1, done: make(chan struct{}), stored: make(chan struct{})}
	u.flights[key] = f
	u.idle.Add(1)
	go func() {
		defer u.idle.Done()
		defer cancel()
		u.fly(ctx, f)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.forget(f)
		close(f.stored)
	}()
	return f
}

// leave ends one caller's interest. A flight that nobody waits for any more
// and that has not arrived is cancelled, and no longer found by others.
func (u *Units) leave(f *flight) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f.waiters--
	select {
	case <-f.done:
		return
	default:
	}
	if f.waiters == 0 {
		f.cancel()
		u.forget(f)
	}
}

// forget makes sure that nobody joins the flight any more. The caller holds mu.
func (u *Units) forget(f *flight) {
	if u.flights[f.key] == f {
		delete(u.flights, f.key)
	}
}

// fly brings the unit, lets the waiters have it, and stores its chunks. A flight
// that failed is forgotten first: whoever tries again needs another.
func (u *Units) fly(ctx context.Context, f *flight) {
	f.unit, f.err = u.bring(ctx, f.key)
	if f.err != nil {
		u.mu.Lock()
		u.forget(f)
		u.mu.Unlock()
	}
	close(f.done)
	if f.err != nil {
		return
	}
	defer u.unstored.Add(-1)
	if u.unstored.Add(1) > maxUnstored {
		u.dropped.Add(1)
		return
	}
	u.store <- struct{}{}
	defer func() { <-u.store }()
	for i := range f.unit.Len() {
		ref := f.unit.Ref(i)
		if u.cache.Has(ref.ID) {
			continue
		}
		plain, err := f.unit.Chunk(i)
		if err != nil {
			u.invalid.Add(1)
			continue
		}
		u.cache.Put(ref, plain)
	}
}

// bring fetches and decodes a unit.
func (u *Units) bring(ctx context.Context, key flightKey) (*pack.Unit, error) {
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	u.requests.Add(1)
	var encoded []byte
	var err error
	what := "unit " + key.unit.String()
	if key.unit.IsZero() {
		what = "chunk " + key.id.String()
		encoded, err = u.source.Chunk(ctx, key.id)
	} else {
		encoded, err = u.source.Unit(ctx, key.unit)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", what, err)
	}
	u.fetched.Add(int64(len(encoded)))
	unit, err := pack.DecodeUnit(encoded)
	if err == nil && key.unit.IsZero() {
		// There is nowhere else to look, so the chunk itself is judged here,
		// where a wrong one is asked for again.
		_, err = unit.Lookup(key.id)
	}
	if err != nil {
		u.invalid.Add(1)
		return nil, &chunk.InvalidError{What: what, Err: err}
	}
	return unit, nil
}

// Wait returns when nothing is on its way any more. It is for shutting down.
func (u *Units) Wait() { u.idle.Wait() }
