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
	// maxFlights bounds the units that are in memory at a time, each of at most
	// pack.MaxPlain bytes plain and usually an eighth of that.
	maxFlights = 128
	// maxWarm bounds those of them that nobody waits for.
	maxWarm = 32
	// storers is how many units are verified and stored at once beside the
	// readers' work.
	storers = 2
	// attempts, firstPause, maxPause: an origin that fails is asked again
	// after pauses that double.
	attempts   = 6
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// Units is the Origin that asks a Source for units. Readers of chunks of one
// unit share one request; a reader has its answer before anything is stored;
// then the unit's other chunks are verified and stored too.
type Units struct {
	source Source
	cache  Cache
	slots  chan struct{}
	warm   chan struct{}
	store  chan struct{}

	fetched  atomic.Int64 // encoded bytes
	requests atomic.Int64
	retries  atomic.Int64
	invalid  atomic.Int64

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

// flight is one unit on its way from the source into the cache.
type flight struct {
	key     flightKey
	cancel  context.CancelFunc
	waiters int           // guarded by Units.mu; at zero before done the flight is cancelled
	done    chan struct{} // closed when unit or err is set
	unit    *pack.Unit
	err     error
}

// NewUnits returns an Origin that stores what it fetches in cache.
func NewUnits(source Source, cache Cache) *Units {
	return &Units{source: source, cache: cache, flights: map[flightKey]*flight{},
		slots: make(chan struct{}, maxFlights), warm: make(chan struct{}, maxWarm), store: make(chan struct{}, storers)}
}

// UnitsStats are figures since the start.
type UnitsStats struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`   // encoded, as received
	Retries  int64 `json:"retries"` // requests that were made again
	Invalid  int64 `json:"invalid"` // answers that were not what was asked for
}

// Stats returns the figures.
func (u *Units) Stats() UnitsStats {
	return UnitsStats{Requests: u.requests.Load(), Bytes: u.fetched.Load(), Retries: u.retries.Load(), Invalid: u.invalid.Load()}
}

// Fetch implements chunk.Fetcher.
func (u *Units) Fetch(ctx context.Context, ref chunk.Ref, dst []byte) (int, error) {
	if len(dst) < int(ref.Length) {
		return 0, fmt.Errorf("fetch chunk %s of %d bytes into %d", ref.ID.Short(), ref.Length, len(dst))
	}
	for _, key := range keysOf(ref) {
		n, err := u.fetch(ctx, key, ref, dst)
		if !errors.Is(err, errElsewhere) {
			return n, err
		}
	}
	return 0, fmt.Errorf("fetch chunk %s: %w", ref.ID, chunk.ErrNotFound)
}

var _ Origin = (*Units)(nil)

// errElsewhere says that the hint was wrong: the unit does not hold the chunk,
// or not what the chunk's ID says, or is gone.
var errElsewhere = errors.New("the chunk is not in the unit")

// keysOf returns where to look for a chunk: in its unit, if that is known, then
// anywhere.
func keysOf(ref chunk.Ref) []flightKey {
	if ref.Unit.IsZero() {
		return []flightKey{{id: ref.ID}}
	}
	return []flightKey{{unit: ref.Unit}, {id: ref.ID}}
}

func (u *Units) fetch(ctx context.Context, key flightKey, ref chunk.Ref, dst []byte) (int, error) {
	f := u.join(key)
	defer u.leave(f)
	select {
	case <-f.done:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if f.err != nil {
		if errors.Is(f.err, chunk.ErrNotFound) {
			return 0, errElsewhere
		}
		return 0, f.err
	}
	plain, err := f.unit.Lookup(ref.ID)
	if err != nil {
		return 0, errElsewhere
	}
	if len(plain) != int(ref.Length) {
		return 0, &chunk.InvalidError{What: "chunk " + ref.ID.String(),
			Err: fmt.Errorf("it has %d bytes, not %d", len(plain), ref.Length)}
	}
	return copy(dst, plain), nil
}

// Warm implements Origin. It waits for a place among those that nobody waits
// for, and returns as soon as the unit is in memory.
func (u *Units) Warm(ctx context.Context, ref chunk.Ref) error {
	select {
	case u.warm <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-u.warm }()
	f := u.join(keysOf(ref)[0])
	defer u.leave(f)
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join returns the flight of that key, starting it if there is none.
func (u *Units) join(key flightKey) *flight {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.flights[key]; f != nil {
		f.waiters++
		return f
	}
	// Detached from the caller that happens to be first: others may join.
	// leave cancels it when the last of them has gone.
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{key: key, cancel: cancel, waiters: 1, done: make(chan struct{})}
	u.flights[key] = f
	u.idle.Add(1)
	go func() {
		defer u.idle.Done()
		defer cancel()
		u.fly(ctx, f)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.forget(f)
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

// fly brings the unit, lets the waiters have it, and stores its chunks.
func (u *Units) fly(ctx context.Context, f *flight) {
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	case <-ctx.Done():
		f.err = context.Cause(ctx)
		close(f.done)
		return
	}
	f.unit, f.err = u.bring(ctx, f.key)
	close(f.done)
	if f.err != nil {
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

// bring fetches and decodes a unit, again and again within bounds.
func (u *Units) bring(ctx context.Context, key flightKey) (*pack.Unit, error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		unit, err := u.bringOnce(ctx, key)
		if err == nil || errors.Is(err, chunk.ErrNotFound) || ctx.Err() != nil || attempt == attempts {
			return unit, err
		}
		u.retries.Add(1)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		pause = min(2*pause, maxPause)
	}
}

func (u *Units) bringOnce(ctx context.Context, key flightKey) (*pack.Unit, error) {
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
