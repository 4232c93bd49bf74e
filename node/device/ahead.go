package device

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

const (
	// aheadQueue bounds the units that reading ahead on one device has asked for
	// and that are not on their way yet; beyond it reading ahead does less, and
	// nobody waits.
	aheadQueue = 1024
	// aheadWorkers is how many are fetched at a time, aheadPerDevice how many of
	// them for one device: what is stuck on one leaves room for another.
	aheadWorkers   = 96
	aheadPerDevice = 48
	// maxPlans is how many startup packs' units are listed at a time.
	maxPlans = 4
)

// Ahead fetches what the devices of a node ask for ahead of their readers, in
// turn.
type Ahead struct {
	share   func() Chunks
	options AheadOptions
	log     *slog.Logger
	plans   chan struct{} // one for each startup pack whose units are being listed
	loads   chan struct{} // one for each unit whose chunks are read from the disk

	streamed yield
	around   yield
	loaded   atomic.Int64

	mu     sync.Mutex // guards what follows, and the wishes in it
	queues []*wishes  // of the devices that wait, each once; the first is next
	more   *sync.Cond // there may be something to do
}

// wishes are what one device asks for.
type wishes struct {
	chunks Chunks
	refs   []chunk.Ref // the first is next
	inWork int
}

// AheadOptions bound what is fetched for nobody who waits.
type AheadOptions struct {
	// Limit is how many bytes, plain, of startup packs may be fetched for one
	// device; 0: they are not fetched.
	Limit int64
	// Short says why nothing of them is to be fetched now, as there is no memory or
	// no disk left for it; nil: nobody knows.
	Short func() error
}

// NewAhead fetches once Run is called. share returns where a new device's bytes
// come from.
func NewAhead(share func() Chunks, options AheadOptions, log *slog.Logger) *Ahead {
	if options.Short == nil {
		options.Short = func() error { return nil }
	}
	a := &Ahead{share: share, options: options, log: log, plans: make(chan struct{}, maxPlans), loads: make(chan struct{}, maxLoads)}
	a.more = sync.NewCond(&a.mu)
	return a
}

// AheadStats are figures since the start.
type AheadStats struct {
	Startup Yield `json:"startup"` // of startup packs
	Around  Yield `json:"around"`  // of what lay around a miss
	// Loaded is how much, plain, of startup packs was on this machine's disk and read
	// into memory.
	Loaded int64 `json:"loadedBytes"`
}

// Stats returns the figures.
func (a *Ahead) Stats() AheadStats {
	return AheadStats{Startup: a.streamed.stats(), Around: a.around.stats(), Loaded: a.loaded.Load()}
}

// plan lists the units of a startup pack, when it is its turn: the locations have to
// be read.
func (a *Ahead) plan(ctx context.Context, locations *index.Locations, pack index.Startup) ([]prefetch.Unit, error) {
	select {
	case a.plans <- struct{}{}:
		defer func() { <-a.plans }()
		return prefetch.Units(locations, pack)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask tells whether there was room for one more.
func (a *Ahead) ask(w *wishes, ref chunk.Ref) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(w.refs) >= aheadQueue {
		return false
	}
	if len(w.refs) == 0 {
		a.queues = append(a.queues, w)
	}
	w.refs = append(w.refs, ref)
	a.more.Signal()
	return true
}

// waiting returns how many wishes of one device are not on their way yet.
func (a *Ahead) waiting(w *wishes) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(w.refs)
}

// drop forgets what one device asks for and is not on its way yet.
func (a *Ahead) drop(w *wishes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.refs = nil
	a.queues = slices.DeleteFunc(a.queues, func(other *wishes) bool { return other == w })
}

// Run fetches until ctx is done.
func (a *Ahead) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.more.Broadcast()
	})()
	var workers sync.WaitGroup
	for range aheadWorkers {
		workers.Go(func() {
			for {
				w, ref := a.next(ctx)
				if w == nil {
					return
				}
				if err := w.chunks.Warm(ctx, ref); err != nil {
					a.log.Debug("read ahead", "chunk", ref.ID.Short(), "cause", err)
				}
				a.done(w)
			}
		})
	}
	workers.Wait()
}

// next returns what to fetch, or nil once ctx is done.
func (a *Ahead) next(ctx context.Context) (*wishes, chunk.Ref) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ctx.Err() == nil {
		for range a.queues {
			w := a.queues[0]
			a.queues = a.queues[1:]
			if w.inWork >= aheadPerDevice {
				a.queues = append(a.queues, w)
				continue
			}
			ref := w.refs[0]
			w.inWork++
			if w.refs = w.refs[1:]; len(w.refs) > 0 {
				a.queues = append(a.queues, w)
			}
			return w, ref
		}
		a.more.Wait()
	}
	return nil, chunk.Ref{}
}

func (a *Ahead) done(w *wishes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.inWork--
	a.more.Signal()
}
