package store

import (
	"context"
	"runtime"

	"lighter/format/chunk"
)

// Fetcher reads chunks for its shares, from the cache or from the source. Readers of one unit share
// one request. A reader has its bytes before anything is stored; then all chunks of the answer
// are verified and stored. It is safe for concurrent use.
type Fetcher struct {
	source Source
	cache  Cache

	storage storage
	retry   retry
	flights flights
	decoder decoder
	gate    gate
	routes
}

// step is one step of the pipeline between flights and the source. It fetches what the flight asks
// for and passes the answer to take, under the rules of Source.Fetch.
type step func(ctx context.Context, f *flight, take func(Answer) error) error

// NewFetcher returns a Fetcher that reads from cache first, then from source.
func NewFetcher(source Source, cache Cache) *Fetcher {
	f := &Fetcher{source: source, cache: cache}
	f.decoder.slots = make(chan struct{}, runtime.GOMAXPROCS(0))
	f.decoder.arriving = make(chan struct{}, maxArriving)
	f.storage = storage{cache: cache, slots: make(chan struct{}, storers), invalid: &f.decoder.invalid}
	f.retry = retry{pauses: retryBackoff, isLoading: cache.IsLoading}
	f.router, _ = source.(Router)
	f.gate.faultEnded = f.wake
	f.flights = flights{cache: cache, storage: &f.storage, wake: f.wake, byKey: map[flightKey]*flight{},
		fetch: f.decoder.wrap(f.gate.wrap(f.measure(obeyBackoff(f.ask))))}
	return f
}

// ask is the last step: it asks the source for the unit, or for the chunk.
func (f *Fetcher) ask(ctx context.Context, of *flight, take func(Answer) error) error {
	f.decoder.requests.Add(1)
	if !of.key.unit.IsZero() {
		return f.source.(UnitSource).FetchUnit(ctx, of.key.unit, take) // keyOf has checked the type
	}
	return f.source.Fetch(ctx, of.ref, take)
}

// keyOf returns the key of the chunk's unit, if the unit is known and the source gives units. If
// not, it returns the key of the chunk.
func (f *Fetcher) keyOf(ref chunk.Ref) flightKey {
	if _, ok := f.source.(UnitSource); ok && !ref.Unit.IsZero() {
		return flightKey{unit: ref.Unit}
	}
	return flightKey{id: ref.ID}
}

// FetcherStats are counters since the start, and current figures.
type FetcherStats struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`    // encoded, as received
	Retries  int64 `json:"retries"`  // tries of readers after the first
	Invalid  int64 `json:"invalid"`  // wrong answers, and wrong chunks in answers
	Unstored int64 `json:"unstored"` // answers that were not stored because the cache was too slow

	InFlight GateStats `json:"inFlight"`
	Link     LinkStats `json:"link"` // to the hubs
	// Registries are the links to registries, by HOST[:PORT].
	Registries map[string]LinkStats `json:"registries,omitempty"`
	Storing    int64                `json:"storingBytes"` // memory of the answers that have arrived and are not stored yet
}

// Stats returns the figures.
func (f *Fetcher) Stats() FetcherStats {
	var registries map[string]LinkStats
	for name, to := range f.namedRoutes() {
		if registries == nil {
			registries = map[string]LinkStats{}
		}
		registries[name] = to.link.stats()
	}
	return FetcherStats{
		Registries: registries,
		Requests:   f.decoder.requests.Load(),
		Bytes:      f.decoder.received.Load(),
		Retries:    f.retry.retries.Load(),
		Invalid:    f.decoder.invalid.Load(),
		Unstored:   f.storage.dropped.Load(),
		InFlight:   f.gate.stats(),
		Link:       f.link.stats(),
		Storing:    f.storage.unstored.Load(),
	}
}

// Share returns a new share of what the Fetcher may have in flight. Requests that hang in other
// shares do not block it.
func (f *Fetcher) Share() *Share { return &Share{fetcher: f, received: map[string]int64{}} }

// Wait waits until all requests have ended and their answers are stored. It is for shutting down.
func (f *Fetcher) Wait() { f.flights.running.Wait() }
