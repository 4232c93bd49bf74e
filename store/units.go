package store

import (
	"context"
	"runtime"

	"lighter/format/chunk"
)

// Units gives chunks to its shares, from the cache or from the source. Readers of one unit share
// one request. A reader has its bytes before anything is stored; then all chunks of the answer
// are verified and stored. It is safe for concurrent use.
type Units struct {
	source Source
	cache  Cache

	storage storage
	retry   retry
	flights flights
	decoder decoder
	gate    gate
	link    link
	backoff backoff
}

// step is one step of the line between flights and the source. It fetches what the flight asks
// for and passes the answer to take, under the rules of Source.Fetch.
type step func(ctx context.Context, f *flight, take func(Answer) error) error

// NewUnits returns Units that read from cache first, then from source.
func NewUnits(source Source, cache Cache) *Units {
	u := &Units{source: source, cache: cache}
	u.decoder.slots = make(chan struct{}, runtime.GOMAXPROCS(0))
	u.storage = storage{cache: cache, slots: make(chan struct{}, storers), invalid: &u.decoder.invalid}
	u.retry = retry{pause: firstPause, isLoading: u.storage.isLoading}
	u.gate.faultEnded = u.link.wake
	u.flights = flights{cache: cache, storage: &u.storage, link: &u.link, byKey: map[flightKey]*flight{},
		fetch: u.decoder.wrap(u.gate.wrap(u.link.wrap(u.backoff.wrap(u.ask), source)))}
	return u
}

// ask is the last step: it asks the source for the unit, or for the chunk.
func (u *Units) ask(ctx context.Context, f *flight, take func(Answer) error) error {
	u.decoder.requests.Add(1)
	if !f.key.unit.IsZero() {
		return u.source.(UnitSource).FetchUnit(ctx, f.key.unit, take) // keyOf has looked
	}
	return u.source.Fetch(ctx, f.ref, take)
}

// keyOf names the unit that holds the chunk if it is known and the source gives units, else the
// chunk.
func (u *Units) keyOf(ref chunk.Ref) flightKey {
	if _, ok := u.source.(UnitSource); ok && !ref.Unit.IsZero() {
		return flightKey{unit: ref.Unit}
	}
	return flightKey{id: ref.ID}
}

// UnitsStats are counters since the start, and current figures.
type UnitsStats struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`    // encoded, as received
	Retries  int64 `json:"retries"`  // tries of readers after the first
	Invalid  int64 `json:"invalid"`  // answers that were not what was asked for
	Unstored int64 `json:"unstored"` // answers for which the cache was too slow

	InFlight GateStats `json:"inFlight"`
	Link     LinkStats `json:"link"`
	Storing  int64     `json:"storingBytes"` // plain bytes that have arrived and are not stored yet
}

// Stats returns the figures.
func (u *Units) Stats() UnitsStats {
	return UnitsStats{
		Requests: u.decoder.requests.Load(),
		Bytes:    u.decoder.received.Load(),
		Retries:  u.retry.retries.Load(),
		Invalid:  u.decoder.invalid.Load(),
		Unstored: u.storage.dropped.Load(),
		InFlight: u.gate.stats(),
		Link:     u.link.stats(),
		Storing:  u.storage.unstored.Load(),
	}
}

// Share returns a new share of what Units may have in flight. Requests that hang in other shares
// do not block it.
func (u *Units) Share() *Share { return &Share{units: u, received: map[string]int64{}} }

// Wait returns when nothing is in flight any more. It is for shutting down.
func (u *Units) Wait() { u.flights.running.Wait() }
