package prefetch

import (
	"context"
	"errors"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/node/device"
)

// guesses fetches what a start probably reads (package guess), if no startup packs are wanted at
// mount. A guess needs the contents of programs and scripts, and each of them may name further
// ones. So guesses repeats the guess: each time it fetches together all that the last guess missed,
// until the guess misses nothing. Each repetition costs processor time, and saves the readers many
// RTTs. So after the first one guesses goes on only if the RTT is long.
type guesses struct {
	device   *device.Device
	source   Source
	requests *requests
	account  account
	slots    chan struct{}                            // of the Prefetcher: one for each guess that runs
	blocked  func() error                             // Options.Blocked
	config   func(tree chunk.ID) (guess.Config, bool) // Options.Config; nil: nothing is guessed
	metadata string                                   // the path of the metadata image; empty: nothing is guessed

	ctx  context.Context // ends with the device
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex // guards what follows
	begun bool       // begin or end was called
}

var _ device.Observer = (*guesses)(nil)

func newGuesses(p *Prefetcher, d *Device) *guesses {
	g := &guesses{device: d.Device, source: d.source, requests: d.requests,
		account: newAccount(d.Extents(), &p.guesses), slots: p.guessing, blocked: p.options.Blocked}
	if p.options.Limit > 0 {
		g.config = p.options.Config
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
	return g
}

// Observe counts what was read of the fetched data.
func (g *guesses) Observe(r device.Read) { g.account.use(r) }

// begin starts the guess of a start. Only the first call of a device does so: then all that was
// guessed is cached. It reports whether there is something to guess.
func (g *guesses) begin() bool {
	if g.config == nil || g.metadata == "" {
		return false
	}
	config, ok := g.config(g.device.Extents().ID())
	if !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.begun {
		g.begun = true
		g.work.Go(func() { g.run(config) })
	}
	return true
}

// end ends the guess, and waits for its requests.
func (g *guesses) end() {
	g.mu.Lock()
	g.begun = true
	g.mu.Unlock()
	g.stop()
	g.work.Wait()
}

// run guesses until a guess misses nothing. An error ends it: a start can do without a guess.
func (g *guesses) run(config guess.Config) {
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	case <-g.ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, guessTime)
	defer cancel()
	file, err := os.Open(g.metadata)
	if err != nil {
		return
	}
	defer file.Close()
	image, err := erofs.Open(file, g.device.Extents().MetadataSize)
	if err != nil {
		return
	}
	for n := range maxGuesses {
		if n > 0 && g.source.BytesPerRTT() == 0 || g.blocked() != nil {
			return
		}
		missing, recordings := g.guess(ctx, image, config)
		arrived := g.fetch(ctx, missing)
		g.request(image, recordings)
		if !arrived() || len(missing) == 0 {
			return
		}
	}
}

// guess returns recordings of probable starts, and the chunks that it has missed.
func (g *guesses) guess(ctx context.Context, image *erofs.Image, config guess.Config) (
	missing []missed, found []trace.Recording,
) {
	seen := map[chunk.ID]bool{}
	of := guess.Image{Metadata: image, Extents: g.device.Extents(), Config: config,
		Chunk: func(_ context.Context, extent int64, ref chunk.Ref) ([]byte, error) {
			plain := make([]byte, ref.Length)
			if g.source.Cached(ref, 0, plain) {
				return plain, nil
			}
			if !seen[ref.ID] {
				seen[ref.ID] = true
				ref.Unit, _ = g.device.Unit(extent)
				missing = append(missing, missed{extent, ref})
			}
			return nil, errMissing
		}}
	found, _ = of.Start(ctx) // the error is that of ctx
	return missing, found
}

// errMissing says that a guess has to do without a chunk.
var errMissing = errors.New("the chunk is not cached yet")

// missed is a chunk that a guess has missed, and its extent.
type missed struct {
	extent int64
	ref    chunk.Ref
}

// fetch fetches chunks together, within the credit. The returned function waits for them, and
// reports whether all have arrived.
func (g *guesses) fetch(ctx context.Context, missing []missed) (arrived func() bool) {
	var group errgroup.Group
	group.SetLimit(maxDeviceFetches)
	for _, m := range missing {
		if g.account.debt(startupPart) > startupCredit {
			return func() bool { _ = group.Wait(); return false }
		}
		g.account.charge(m.extent, m.ref.Length)
		group.Go(func() error { return g.source.Prefetch(ctx, m.ref) })
	}
	return func() bool { return group.Wait() == nil }
}

// request requests what recordings have, in their order, within the credit.
func (g *guesses) request(image *erofs.Image, recordings []trace.Recording) {
	finder := image.Finder()
	for _, r := range recordings {
		for _, entry := range r.Entries {
			if g.account.debt(startupPart) > startupCredit {
				return
			}
			in, err := finder.Find(entry.Path)
			if err != nil || !in.Device {
				continue
			}
			from := int64(in.Address) + entry.Offset
			if g.device.Extents().Range(from, from+entry.Length, g.requestExtent) != nil {
				return
			}
		}
	}
}

// requestExtent requests an extent's chunk, unless that was done before or it is cached. It reports
// whether there is room for more requests.
func (g *guesses) requestExtent(i int64, e index.Extent) bool {
	if g.source.Has(e.ID) || !g.account.charge(i, e.Length) {
		return true
	}
	unit, _ := g.device.Unit(i)
	return g.requests.add(refOf(e, unit))
}
