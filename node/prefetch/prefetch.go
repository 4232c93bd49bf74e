// Package prefetch fetches what the readers of devices are expected to read next. A Device is a
// device.Device with four observers of its reads:
//
//   - sequential fetches ahead of a sequential reader, as many bytes as it has read of the file.
//   - neighbours fetches, on a miss, the rest of the missing chunk's file and units of neighbouring
//     files, if the RTT is long.
//   - startup fetches startup packs: chunks that starts read together. The hub makes them from the
//     starts that nodes have recorded (package record).
//   - guesses fetches what a start probably reads, if there are no startup packs.
//
// All of it is speculative. Bytes and requests are bounded, and requests of readers go first. The
// neighbours, the startup packs and the guesses stop if too little of the fetched data is read. If
// a fetch fails, readers fetch the data themselves.
//
// The Prefetcher has what the devices of a node share: the queue of requests, the bounds of all
// devices together, and the counters.
package prefetch

import (
	"context"
	"log/slog"

	"lighter/format/chunk"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/node/device"
)

// Source is where the chunks of one device come from: a share of store.Fetcher.
type Source interface {
	device.Chunks
	Cache
	Fetcher
	Streamer
	Link
	Meter
}

// Cache is the part of a Source that knows what is cached.
type Cache interface {
	// Has reports whether a chunk is probably cached.
	Has(id chunk.ID) bool
	// IsLoading reports whether chunks of a previous process may still turn up in the cache.
	IsLoading() bool
	// Load reads chunks from the disk into memory, and returns when it has read them. It skips
	// chunks that are not cached.
	Load(refs []chunk.Ref)
}

// Fetcher is the part of a Source that fetches single units.
type Fetcher interface {
	// Prefetch fetches the chunk's unit into the cache, with the priority of background requests.
	// It returns when the unit is stored.
	Prefetch(ctx context.Context, ref chunk.Ref) error
}

// Streamer is the part of a Source that fetches units one after the other.
type Streamer interface {
	// Stream requests the chunk's unit, of about size bytes. It waits until the link has room, and
	// returns when the unit is in flight. The caller must then call wait. wait returns when the
	// unit was stored or dropped, with the number of bytes that were received for this call. wait
	// is nil if nothing had to be requested.
	Stream(ctx context.Context, ref chunk.Ref, size int64) (wait func(context.Context) (int64, error), err error)
}

// Link is the part of a Source that knows the paths to its servers.
type Link interface {
	// BytesPerRTT returns how many bytes arrive in one RTT from a unit's server, if the RTT is
	// long; 0 if it is short or unknown.
	BytesPerRTT(u chunk.Unit) int64
}

// Meter is the part of a Source that counts.
type Meter interface {
	// Received returns the bytes received for this device (compressed), by origin.
	Received() map[string]int64
}

// Options bound what is prefetched.
type Options struct {
	// Limit is how many bytes of startup packs, uncompressed, may be fetched for one start of a
	// device. With 0, neither startup packs nor neighbours nor guesses are fetched.
	Limit int64
	// Blocked returns why nothing may be fetched now, such as a lack of memory or disk, or nil if
	// fetching is allowed. It may be nil itself.
	Blocked func() error
	// Config returns how the image of a tree starts, or false if its start is not to be guessed. It
	// may be nil: then no start is guessed.
	Config func(tree chunk.ID) (guess.Config, bool)
}

// Prefetcher fetches for the devices of a node. It is safe for concurrent use.
type Prefetcher struct {
	source  func() Source
	options Options
	log     *slog.Logger
	queue   *queue
	plans   chan struct{} // one for each startup pack whose units are being listed
	loads   loads

	guessing, preparing chan struct{} // lane.computing of the devices

	startup    yield
	neighbours yield
	guesses    yield
}

// New returns a prefetcher. source is called once for each device, and returns the device's source.
// The requests of sequential, neighbours and guesses are fetched while Run runs.
func New(source func() Source, options Options, log *slog.Logger) *Prefetcher {
	if options.Blocked == nil {
		options.Blocked = func() error { return nil }
	}
	return &Prefetcher{source: source, options: options, log: log, queue: newQueue(log),
		plans: make(chan struct{}, maxPlans), loads: newLoads(), guessing: make(chan struct{}, maxGuessing),
		preparing: make(chan struct{}, maxGuessing)}
}

// Run fetches queued requests until ctx is done.
func (p *Prefetcher) Run(ctx context.Context) { p.queue.run(ctx) }

// Stats are a prefetcher's figures since it was made.
type Stats struct {
	Startup    Yield `json:"startup"`    // of startup packs
	Neighbours Yield `json:"neighbours"` // of units around a miss
	Guesses    Yield `json:"guesses"`    // of starts that were guessed, for want of startup packs
	// Loaded is how many bytes of startup packs, uncompressed, were read from the disk into memory.
	Loaded int64 `json:"loadedBytes"`
}

// Stats returns the prefetcher's figures.
func (p *Prefetcher) Stats() Stats {
	return Stats{Startup: p.startup.stats(), Neighbours: p.neighbours.stats(),
		Guesses: p.guesses.stats(), Loaded: p.loads.bytes.Load()}
}

// Device is a device whose data is fetched ahead of the reads. It is safe for concurrent use.
type Device struct {
	*device.Device
	source     Source
	requests   *requests
	startup    *startup
	sequential *sequential
	neighbours *neighbours
	guesses    *guesses
}

// Open returns the device of the tree that extents belongs to. locations may be nil. The caller
// must call Close.
func (p *Prefetcher) Open(extents *index.Map, locations *index.Locations, log *slog.Logger) *Device {
	source := p.source()
	d := &Device{Device: device.New(extents, locations, source, log), source: source}
	d.requests = p.queue.requestsOf(source)
	d.startup = newStartup(p, d.Device, source)
	d.sequential = &sequential{device: d.Device, cache: source, requests: d.requests, startup: d.startup}
	d.neighbours = newNeighbours(p, d)
	d.guesses = newGuesses(p, d)
	d.Observe(d.startup) // first, because the other observers do not fetch what startup fetches
	d.Observe(d.sequential)
	d.Observe(d.neighbours)
	d.Observe(d.guesses)
	d.startup.setLocations(locations)
	return d
}

// SetLocations replaces the device's locations. After it has returned, the file of the previous
// locations may be closed.
func (d *Device) SetLocations(locations *index.Locations) {
	d.Device.SetLocations(locations)
	d.startup.setLocations(locations)
}

// GuessFrom sets the path of the tree's metadata image, of which the first start is guessed. It is
// called before the device is used. Without it nothing is guessed.
func (d *Device) GuessFrom(metadata string) { d.guesses.metadata = metadata }

// Begin starts the fetch of what every start needs: of startup packs, or else of what the first
// start probably reads. It reports whether there is something to fetch. It is called before each
// start, and does not block.
func (d *Device) Begin() bool {
	isNew, hasPacks := d.startup.begin()
	if isNew {
		d.neighbours.forget()
	}
	return hasPacks || d.guesses.begin()
}

// Expect says which program a container is about to run, after Begin. It does not block.
func (d *Device) Expect(program guess.Config) { d.guesses.expect(program) }

// EndStartup ends the fetch of startup packs and the guess for good, and waits until no unit of
// theirs is in flight.
func (d *Device) EndStartup() {
	d.startup.end()
	d.guesses.end()
}

// Received returns the bytes received for the device, by the URL of the hub or mirror that sent
// them. If two devices need a unit, its bytes count for the device that requested it first.
func (d *Device) Received() map[string]int64 { return d.source.Received() }

// Close ends all prefetching for the device. It is called when no more reads come.
func (d *Device) Close() error {
	d.EndStartup()
	d.neighbours.work.Wait()
	d.requests.drop()
	return nil
}
