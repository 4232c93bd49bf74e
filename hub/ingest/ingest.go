// Package ingest promises that an image becomes ready whole or not at all: its
// layers are split into chunks, packed, merged into a tree and indexed, and
// only when every blob, every layer and the tree were verified does any of it
// become known. A layer is split once and a chunk stored once for ever,
// whichever image they come with.
//
// Images come by a push to the hub's registry or are copied there from another
// one; they are taken in one at a time, in the order in which they came, their
// layers side by side. What is not an image is left in the registry. An image
// that cannot be taken in is failed, with the reason, and can be tried again.
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
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/objects"
	"lighter/hub/registry"
	wire "lighter/store/hub"
)

// Config says how images are taken in.
type Config struct {
	Platforms []string // os/arch of the images that are taken in without being asked for
	Limits    tree.Limits
	Scratch   string // directory on the file system of the objects; emptied at the start
	Key       ed25519.PrivateKey
	Log       *slog.Logger
}

// Service takes images in. It is safe for concurrent use.
type Service struct {
	config   Config
	catalog  *catalog.Catalog
	objects  *objects.Store
	registry *registry.Registry

	encoders encoders
	layers   *semaphore.Weighted // layers that are read at once
	trees    *semaphore.Weighted // trees that are made at once because a node asks
	making   singleflight.Group  // trees, by chain
	storing  *semaphore.Weighted // for one publication
	wake     chan struct{}       // has an element when the queue may have one
	copies   chan *imageCopy     // that wait to be begun

	mu      sync.Mutex // guards the following
	jobs    map[int64]*job
	copying map[copyKey]*imageCopy
	cancel  map[int64]context.CancelFunc // of the image that is being taken in
}

const (
	maxLayersAtOnce = 4   // each takes some 20 MB
	treesAtOnce     = 2   // each takes the memory of a tree
	copiesAtOnce    = 2   // images that are copied at once
	copiesWaiting   = 100 // beyond these the hub is busy
)

// New returns a service over the stores. Nothing happens before Run.
func New(config Config, c *catalog.Catalog, o *objects.Store, r *registry.Registry) (*Service, error) {
	cores := runtime.GOMAXPROCS(0)
	e, err := newEncoders(cores)
	if err != nil {
		return nil, fmt.Errorf("make zstd encoders: %w", err)
	}
	return &Service{
		config: config, catalog: c, objects: o, registry: r,
		encoders: e,
		layers:   semaphore.NewWeighted(int64(min(cores, maxLayersAtOnce))),
		trees:    semaphore.NewWeighted(treesAtOnce),
		storing:  semaphore.NewWeighted(1),
		wake:     make(chan struct{}, 1),
		copies:   make(chan *imageCopy, copiesWaiting),
		jobs:     map[int64]*job{}, copying: map[copyKey]*imageCopy{}, cancel: map[int64]context.CancelFunc{},
	}, nil
}

// Run takes images in until ctx ends. What was being taken in when the hub last
// ended begins anew.
func (s *Service) Run(ctx context.Context) error {
	if err := s.sweep(ctx); err != nil {
		return err
	}
	if err := s.catalog.Requeue(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.work(ctx) })
	for range copiesAtOnce {
		group.Go(func() error {
			for {
				select {
				case c := <-s.copies:
					s.runCopy(ctx, c)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	return group.Wait()
}

// retryCatalog is how long the queue rests when the catalog cannot be read.
const retryCatalog = 5 * time.Second

// work takes the images of the queue in, one after the other.
func (s *Service) work(ctx context.Context) error {
	for {
		image, err := s.catalog.Next(ctx)
		switch {
		case err == nil:
			s.take(ctx, image)
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, catalog.ErrNotFound):
			s.config.Log.Error("read the queue of images", "error", err)
		}
		select {
		case <-s.wake:
		case <-time.After(retryCatalog):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take takes one image in and notes how it ended. If the hub is ending, the image
// begins anew with the next start.
func (s *Service) take(ctx context.Context, image catalog.Image) {
	started := time.Now()
	log := s.config.Log.With("image", image.Name, "digest", image.Digest)
	job := s.job(image.N)
	imageCtx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancel[image.N] = cancel
	s.mu.Unlock()
	err := s.ingest(imageCtx, image, job)
	gone := imageCtx.Err() != nil
	s.mu.Lock()
	delete(s.cancel, image.N)
	s.mu.Unlock()
	cancel()
	defer s.finish(image.N)
	var notImage *notImageError
	switch {
	case ctx.Err() != nil:
		if err := s.catalog.Release(context.WithoutCancel(ctx), image.N); err != nil {
			log.Error("put it back into the queue", "error", err)
		}
		return
	case gone:
		log.Info("image was taken away before it was ready")
		return
	case err == nil:
		log.Info("image is ready", "seconds", time.Since(started).Seconds())
		return
	case errors.As(err, &notImage):
		log.Info("kept and served, not taken in", "why", notImage.why)
		err = s.catalog.End(ctx, image.N, wire.StateStored, "")
	default:
		reason := fmt.Sprintf("image %s: %v", image.Name, err)
		log.Warn("image failed", "error", err)
		err = s.catalog.End(ctx, image.N, wire.StateFailed, reason)
	}
	if err != nil {
		log.Error("note how it ended", "error", err)
	}
}

// wakeUp makes the worker look at the queue.
func (s *Service) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
