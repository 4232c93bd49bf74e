package prefetch

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/node/device"
)

// guesses fetches what a start probably reads (package guess), if no startup packs are wanted at
// mount. It guesses the program that the image's config names as soon as a start begins, the one
// that a container is about to run as soon as that is known, and any other program or Python
// package that it knows when a reader reads the first bytes of it.
//
// A guess needs the contents of programs and scripts, and each of them may name further ones. So
// guesses repeats the guess: each time it fetches together all that the last guess missed, until
// the guess misses nothing. If the RTT is long, it does so for all programs as soon as a start
// begins, but requests the rest of what they read only when one of them runs. Python packages are
// guessed only then: the guess of a large one takes 0.2 s of processor time, for thousands of
// modules.
type guesses struct {
	device    *device.Device
	source    Source
	requests  *requests
	account   account
	guessing  lane
	preparing lane                                     // a start that has begun does not wait for what may begin
	blocked   func() error                             // Options.Blocked
	config    func(tree chunk.ID) (guess.Config, bool) // Options.Config; nil: nothing is guessed
	metadata  string                                   // the path of the metadata image; empty: nothing is guessed

	ctx  context.Context // ends with the device
	stop context.CancelFunc
	work sync.WaitGroup

	mu       sync.Mutex // guards what follows
	begun    bool       // begin or end was called
	ended    bool
	waiting  atomic.Pointer[[]guess.Start] // for a read of their triggers; it is replaced as a whole
	started  []guess.Start                 // each of them once
	expected int                           // of them, those of which expect was told

	prepared atomic.Int64 // bytes that were fetched by prepare
	spent    atomic.Int64 // nanoseconds in which guess ran
}

// lane bounds the guesses of one kind.
type lane struct {
	computing chan struct{} // of the Prefetcher: has a value for each guess that is computed
	fetching  chan struct{} // has a value for each chunk that the device's guesses fetch
}

func newLane(computing chan struct{}) lane {
	return lane{computing, make(chan struct{}, maxDeviceFetches/2)}
}

var _ device.Observer = (*guesses)(nil)

func newGuesses(p *Prefetcher, d *Device) *guesses {
	g := &guesses{device: d.Device, source: d.source, requests: d.requests,
		account: newAccount(d.Extents(), &p.guesses), guessing: newLane(p.guessing),
		preparing: newLane(p.preparing), blocked: p.options.Blocked}
	if p.options.Limit > 0 {
		g.config = p.options.Config
	}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.waiting.Store(&[]guess.Start{})
	return g
}

// Observe counts what was read of the fetched data, and guesses the starts whose triggers are read.
func (g *guesses) Observe(r device.Read) {
	g.account.use(r)
	isRead := func(s guess.Start) bool { return s.Trigger >= r.Offset && s.Trigger < r.Offset+r.Length }
	if !slices.ContainsFunc(*g.waiting.Load(), isRead) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range *g.waiting.Load() {
		if isRead(s) && !g.ended && g.markStarted(s) {
			g.work.Go(func() { g.start(s) })
		}
	}
}

// markStarted notes that a start starts, and returns false if it has started before. From then on,
// its file is no trigger. mu is held.
func (g *guesses) markStarted(s guess.Start) bool {
	if slices.ContainsFunc(g.started, s.Same) {
		return false
	}
	g.started = append(g.started, s)
	isIts := func(w guess.Start) bool { return w.Trigger == s.Trigger }
	left := slices.DeleteFunc(slices.Clone(*g.waiting.Load()), isIts)
	g.waiting.Store(&left)
	return true
}

// expect guesses the program that a container is about to run, unless that was guessed before.
// Without begin nothing is guessed.
func (g *guesses) expect(program guess.Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.begun || g.ended || g.expected == maxExpected {
		return
	}
	g.expected++
	g.work.Go(func() {
		var s guess.Start
		found := false
		g.compute(g.ctx, g.guessing, func(ctx context.Context, of *guess.Image) {
			s, found = of.Program(ctx, program)
		})
		g.mu.Lock()
		isNew := found && g.markStarted(s)
		if !isNew {
			g.expected-- // it costs nothing more
		}
		g.mu.Unlock()
		if isNew {
			g.start(s)
		}
	})
}

// begin starts the guesses of a start. Only the first call of a device does so: then all that was
// guessed is cached. It reports whether there is something to guess.
func (g *guesses) begin() bool {
	if g.config == nil || g.metadata == "" {
		return false
	}
	if _, ok := g.config(g.device.Extents().ID()); !ok {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.begun {
		g.begun = true
		g.work.Go(g.all)
	}
	return true
}

// end ends the guesses, and waits for their requests.
func (g *guesses) end() {
	g.mu.Lock()
	g.begun, g.ended = true, true
	g.mu.Unlock()
	g.stop()
	g.work.Wait()
}

// compute calls fn with the image, when there is room for it in the lane. It returns the chunks
// that fn has missed. An error ends it: a start can do without a guess.
func (g *guesses) compute(ctx context.Context, in lane, fn func(ctx context.Context, of *guess.Image)) (
	missing []missed,
) {
	select {
	case in.computing <- struct{}{}:
		defer func() { <-in.computing }()
	case <-ctx.Done():
		return nil
	}
	config, ok := g.config(g.device.Extents().ID())
	if !ok {
		return nil
	}
	file, err := os.Open(g.metadata)
	if err != nil {
		return nil
	}
	defer file.Close()
	image, err := erofs.Open(file, g.device.Extents().MetadataSize)
	if err != nil {
		return nil
	}
	seen := map[chunk.ID]bool{}
	fn(ctx, &guess.Image{Metadata: image, Extents: g.device.Extents(), Config: config,
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
		}})
	return missing
}

// all guesses the start that the config names. The others wait for their triggers.
func (g *guesses) all() {
	var starts []guess.Start
	g.compute(g.ctx, g.guessing, func(ctx context.Context, of *guess.Image) {
		starts, _ = of.Starts(ctx) // the error is that of ctx
	})
	others := slices.DeleteFunc(slices.Clone(starts), func(s guess.Start) bool { return s.Named })
	g.wait(others)
	for _, s := range others {
		if g.isFar(s) {
			g.work.Go(func() { g.prepare(s) })
		}
	}
	for _, s := range starts {
		g.mu.Lock()
		isNew := s.Named && g.markStarted(s)
		g.mu.Unlock()
		if isNew {
			g.start(s)
		}
	}
}

// isFar reports whether the RTT to the server that has a start's trigger is long.
func (g *guesses) isFar(s guess.Start) (far bool) {
	if s.Trigger >= 0 {
		_ = g.device.Extents().Range(s.Trigger, s.Trigger+1, func(i int64, _ index.Extent) bool {
			unit, _ := g.device.Unit(i)
			far = g.source.BytesPerRTT(unit) > 0
			return false
		})
	}
	return far
}

// prepare fetches what the guess of a start needs, so that it misses nothing when the start begins.
func (g *guesses) prepare(s guess.Start) {
	ctx, cancel := context.WithTimeout(g.ctx, guessTime)
	defer cancel()
	for range maxGuesses {
		if g.blocked() != nil || g.prepared.Load() > maxPrepared || g.spent.Load() > int64(maxSpent) {
			return
		}
		missing, _ := g.guess(ctx, g.preparing, s)
		for _, m := range missing {
			g.prepared.Add(int64(m.ref.Length))
		}
		if len(missing) == 0 || !g.fetch(ctx, g.preparing, missing)() {
			return
		}
	}
}

// wait adds starts to those that wait for their triggers, unless a start with the same trigger
// waits or was started.
func (g *guesses) wait(starts []guess.Start) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.Clone(*g.waiting.Load())
	for _, s := range starts {
		has := func(other guess.Start) bool { return other.Trigger == s.Trigger }
		if !slices.ContainsFunc(all, has) && !slices.ContainsFunc(g.started, has) {
			all = append(all, s)
		}
	}
	g.waiting.Store(&all)
}

// start guesses a start until a guess misses nothing.
func (g *guesses) start(s guess.Start) {
	ctx, cancel := context.WithTimeout(g.ctx, guessTime)
	defer cancel()
	for round := range maxGuesses {
		if g.blocked() != nil || g.spent.Load() > int64(maxSpent) {
			return
		}
		missing, recording := g.guess(ctx, g.guessing, s)
		if round == 0 {
			missing = g.addFirst(missing, s)
		}
		arrived := g.fetch(ctx, g.guessing, missing)
		g.compute(ctx, g.guessing, func(_ context.Context, of *guess.Image) { g.request(of.Metadata, recording) })
		if !arrived() {
			return
		}
		if len(missing) == 0 {
			break
		}
	}
	if g.isFar(s) {
		g.compute(ctx, g.guessing, func(ctx context.Context, of *guess.Image) {
			packages, _ := of.Packages(ctx, s) // the error is that of ctx
			g.wait(packages)
		})
	}
}

// addFirst adds the chunks of the file that a start reads first, unless they are cached or the file
// is large. The next guess needs the end of a program, too: it names the libraries.
func (g *guesses) addFirst(missing []missed, s guess.Start) []missed {
	if s.Trigger < 0 || s.Length > maxFirst {
		return missing
	}
	_ = g.device.Extents().Range(s.Trigger, s.Trigger+s.Length, func(i int64, e index.Extent) bool {
		isIt := func(m missed) bool { return m.ref.ID == e.ID }
		if unit, _ := g.device.Unit(i); !g.source.Has(e.ID) && !slices.ContainsFunc(missing, isIt) {
			missing = append(missing, missed{i, refOf(e, unit)})
		}
		return true
	})
	return missing
}

// guess returns a recording of a probable start, and the chunks that it has missed.
func (g *guesses) guess(ctx context.Context, in lane, s guess.Start) (missing []missed, found trace.Recording) {
	missing = g.compute(ctx, in, func(ctx context.Context, of *guess.Image) {
		began := time.Now()
		defer func() { g.spent.Add(int64(time.Since(began))) }()
		ctx, cancel := context.WithTimeout(ctx, maxSpent/4)
		defer cancel()
		found, _ = of.Recording(ctx, s) // the error is that of ctx: then a part was guessed
	})
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
func (g *guesses) fetch(ctx context.Context, in lane, missing []missed) (arrived func() bool) {
	var group errgroup.Group
	for _, m := range missing {
		if g.account.debt(startupPart) > startupCredit {
			return func() bool { _ = group.Wait(); return false }
		}
		select {
		case in.fetching <- struct{}{}:
		case <-ctx.Done():
			return func() bool { _ = group.Wait(); return false }
		}
		g.account.charge(m.extent, m.ref.Length)
		group.Go(func() error {
			defer func() { <-in.fetching }()
			return g.source.Prefetch(ctx, m.ref)
		})
	}
	return func() bool { return group.Wait() == nil }
}

// request requests what a recording has, in its order, within the credit.
func (g *guesses) request(image *erofs.Image, r trace.Recording) {
	finder := image.Finder()
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

// requestExtent requests an extent's chunk, unless that was done before or it is cached. It reports
// whether there is room for more requests.
func (g *guesses) requestExtent(i int64, e index.Extent) bool {
	if g.source.Has(e.ID) || !g.account.charge(i, e.Length) {
		return true
	}
	unit, _ := g.device.Unit(i)
	return g.requests.add(refOf(e, unit))
}
