// Package ingest promises that an image becomes ready whole or not at all: its
// layers are split into chunks, packed, merged into a tree and indexed, and
// only when every blob, every layer and the tree were verified does any of it
// become known. A layer is split once and a chunk stored once for ever,
// whichever image they come with.
//
// Images come by a push to the hub's registry or are copied there from another
// one; they are taken in one at a time, their layers side by side: those first
// whose blobs are all there, in the order in which they came, then those that
// are on their way. What is not an image is left in the registry. An image that
// cannot be taken in is failed, with the reason, and can be tried again.
//
// It refuses to guess: a layer of an unknown kind, an entry that containerd
// would not unpack, bytes beyond the limits are errors. Hazard: memory is
// bounded for each layer and unit on its way, but a tree and the list of an
// image's chunks are in memory while its index is made: about 500 bytes an
// entry and 100 a chunk.
package ingest

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/registry"
)

// Config says how images are taken in.
type Config struct {
	Platforms []string // os/arch of the images that are taken in without being asked for
	Sources   []string // registries, HOST or HOST:PORT, that may have other addresses than public ones
	Limits    tree.Limits
	ImageTime time.Duration        // that an image may take: to be copied, and then to be taken in
	Keys      []ed25519.PrivateKey // each signs; at least one
	// RegistryHosts are the HOST[:PORT] under which nodes pull from the hub's own registry.
	RegistryHosts []string
	Log           *slog.Logger
	// Ready, unless it is nil, is called with each image that has just become ready,
	// before those who wait for the image hear of it.
	Ready func(ctx context.Context, image catalog.Image) error
}

// Service takes images in. It is safe for concurrent use.
type Service struct {
	config   Config
	catalog  *catalog.Catalog
	objects  *objects.Store
	registry *registry.Registry

	// As Config and the constants say, but in tests.
	ImageTime  time.Duration
	MaxDerived int

	life context.Context // of all work; ends with Run
	end  context.CancelFunc

	publisher *publish.Publisher
	encoders  *encoder.Pool
	layers    *semaphore.Weighted // layers that are read at once
	merging   *semaphore.Weighted // trees that are made at once, for whatever reason
	asked     *semaphore.Weighted // trees that are made at once because somebody asks, before merging
	asking    *semaphore.Weighted // those, and those that wait
	verifying *semaphore.Weighted // images that are verified at once
	making    singleflight.Group  // trees, by chain
	slots     *semaphore.Weighted // copies that are under way at once
	pending   chan *imageCopy     // to be begun
	wake      chan struct{}       // has an element when the queue may have one

	afterwards sync.WaitGroup // what is done for images that are ready

	repositories [64]sync.Mutex // see Lock

	mu       sync.Mutex // guards the following; nobody waits for the catalog with it
	jobs     map[int64]*job
	copies   map[copyKey]*imageCopy
	doubtful map[string]bool // names of which the registry may say something else than the catalog
	taken    *taken          // what is being taken in
	arrivals int             // how often an image came whose blobs are all there
}

const (
	maxLayersAtOnce = 4 // each takes some 20 MB
	mergingAtOnce   = 1 // each takes the memory of a tree: 1 GiB and more of the largest
	verifiedAtOnce  = 2
	maxAsked        = 32  // trees that are asked for; beyond these the hub is busy
	copiesAtOnce    = 2   // images that are copied at once
	maxCopies       = 100 // with those that wait; beyond these the hub is busy
)

// New returns a service over the stores. Nothing happens before Run.
func New(config Config, c *catalog.Catalog, o *objects.Store, r *registry.Registry, p *publish.Publisher, e *encoder.Pool) *Service {
	s := &Service{
		config: config, ImageTime: config.ImageTime, MaxDerived: maxDerived, catalog: c, objects: o, registry: r,
		publisher: p, encoders: e,
		layers:    semaphore.NewWeighted(int64(min(runtime.GOMAXPROCS(0), maxLayersAtOnce))),
		merging:   semaphore.NewWeighted(mergingAtOnce),
		asked:     semaphore.NewWeighted(1),
		asking:    semaphore.NewWeighted(maxAsked),
		verifying: semaphore.NewWeighted(verifiedAtOnce),
		slots:     semaphore.NewWeighted(copiesAtOnce),
		pending:   make(chan *imageCopy, maxCopies),
		wake:      make(chan struct{}, 1),
		jobs:      map[int64]*job{}, copies: map[copyKey]*imageCopy{}, doubtful: map[string]bool{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Recover requeues the images and reads again the names that the previous process left
// in the middle of its work. It comes before anything else.
func (s *Service) Recover(ctx context.Context) error {
	if err := s.catalog.Requeue(ctx); err != nil {
		return err
	}
	return s.compareNames(ctx)
}

// Run takes images in until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	defer s.end()
	defer context.AfterFunc(ctx, s.end)()
	group, life := errgroup.WithContext(s.life)
	group.Go(func() error { return s.work(life) })
	group.Go(func() error {
		for {
			select {
			case c := <-s.pending:
				group.Go(func() error { s.runCopy(c); return nil })
			case <-life.Done():
				return life.Err()
			}
		}
	})
	err := group.Wait()
	s.afterwards.Wait()
	// What somebody asked for is ended too, and nobody begins more.
	ctx = context.WithoutCancel(ctx)
	return errors.Join(err, s.asked.Acquire(ctx, 1), s.verifying.Acquire(ctx, verifiedAtOnce))
}

// retryCatalog is how long the work rests when the catalog cannot be used.
const retryCatalog = 5 * time.Second

// work takes the images of the queue in, one after the other.
func (s *Service) work(ctx context.Context) error {
	for {
		s.settleDoubts(ctx)
		err := s.takeNext(ctx)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, catalog.ErrNotFound):
			s.config.Log.Error("read the queue of images", "cause", err)
		}
		select {
		case <-s.wake:
		case <-time.After(retryCatalog):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wakeUp makes the worker look at the queue.
func (s *Service) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// persist does to the catalog what has to be done, when it can: others wait to
// hear of it. It returns an error only when the hub ends, and then tries once.
func (s *Service) persist(what string, do func(ctx context.Context) error) error {
	for {
		err := do(context.WithoutCancel(s.life))
		if err == nil {
			return nil
		}
		s.config.Log.Error(what, "cause", err)
		select {
		case <-time.After(retryCatalog):
		case <-s.life.Done():
			return s.life.Err()
		}
	}
}
