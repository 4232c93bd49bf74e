// Package queue runs one image's ingestion at a time, in the order of the catalog's queue, and
// records how each one ends.
//
// Images whose blobs are all in the registry come first: an image that is still being copied may
// depend on a slow source, so it goes back to the queue when another one has arrived. An image that
// fails has a reason and can be queued again. Images that were interrupted by the end of the hub
// are queued again at its next start.
//
// The queue itself is in the catalog. In memory are the active image and the clients that wait.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/oci"
	"lighter/hub/report"
	"lighter/wire"
)

// Store has the queue. The hub's catalog implements it.
type Store interface {
	// Next makes the first queued image active for which suits is true. The error is
	// catalog.ErrNotFound if there is none.
	Next(ctx context.Context, suits func(catalog.Image) bool) (catalog.Image, error)
	// Release makes an active image queued again. The error is catalog.ErrNotFound if the image
	// was removed.
	Release(ctx context.Context, n int64) error
	// End gives an active image its final state, with a reason.
	End(ctx context.Context, n int64, state, reason string) error
	// Numbered returns those of the images that still exist.
	Numbered(ctx context.Context, numbers []int64) ([]catalog.Image, error)
}

var _ Store = (*catalog.Catalog)(nil)

// Transfer brings an image's blobs to the hub's registry.
type Transfer interface {
	Begun() bool
	Ended() bool
}

// Images ingests the images of the queue.
type Images interface {
	// Transfer returns the transfer that brings an image, which has ended if there is none.
	Transfer(image catalog.Image) Transfer
	// Ingest ingests an image and makes it ready. The error is an *oci.NotImageError if the image
	// is only to be stored.
	Ingest(ctx context.Context, image catalog.Image, from Transfer, progress *report.Progress) error
	// Ready is called when an image has become ready, before Await returns to its clients.
	Ready(ctx context.Context, image catalog.Image)
	// Finished is called after an image has reached its final state.
	Finished(image catalog.Image)
	// BeforeNext is called before the queue is read.
	BeforeNext(ctx context.Context)
}

// Queue is the queue of images. It is safe for concurrent use.
type Queue struct {
	// ImageTime bounds one ingestion. It is set before Run.
	ImageTime time.Duration

	store  Store
	images Images
	log    *slog.Logger

	wake  chan struct{}  // has an element if the catalog's queue may have one
	ready sync.WaitGroup // calls of Images.Ready

	mu       sync.Mutex // guards the following; not held during calls of store and images
	jobs     map[int64]*job
	active   *active
	arrivals int // number of calls of Arrived
}

// active is the image that is being ingested.
type active struct {
	catalog.Image
	from   Transfer
	cancel context.CancelCauseFunc
}

var (
	// ErrRemoved ends the work on an image that was removed.
	ErrRemoved = errors.New("the image was removed")
	// errRequeued ends an ingestion that is done again later.
	errRequeued = errors.New("another image comes first")
)

// New returns the queue in store. Nothing is ingested before Run.
func New(store Store, images Images, imageTime time.Duration, log *slog.Logger) *Queue {
	return &Queue{ImageTime: imageTime, store: store, images: images, log: log,
		wake: make(chan struct{}, 1), jobs: map[int64]*job{}}
}

// storeRetry is the pause after an error of the store.
const storeRetry = 5 * time.Second

// Run ingests images until ctx ends.
func (q *Queue) Run(ctx context.Context) error {
	defer q.ready.Wait()
	for {
		q.images.BeforeNext(ctx)
		err := q.next(ctx)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, catalog.ErrNotFound):
			q.log.Error("read the queue of images", "err", err)
		}
		select {
		case <-q.wake:
		case <-time.After(storeRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Wake makes Run read the queue.
func (q *Queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Arrived is called after an image was queued whose blobs are all in the registry.
func (q *Queue) Arrived() {
	q.mu.Lock()
	q.arrivals++
	q.requeueArriving()
	q.mu.Unlock()
	q.Wake()
}

// requeueArriving interrupts the active image if its blobs are still arriving. q.mu is held.
func (q *Queue) requeueArriving() {
	if a := q.active; a != nil && !a.from.Ended() {
		a.cancel(errRequeued)
	}
}

// Requeue interrupts the active image if this transfer brings it, as another one will.
func (q *Queue) Requeue(from Transfer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.active != nil && q.active.from == from {
		q.requeueArriving()
	}
}

// Removed ends the work on images that were removed from the catalog.
func (q *Queue) Removed(images []catalog.Image) {
	for _, image := range images {
		q.mu.Lock()
		isActive := q.active != nil && q.active.N == image.N
		if isActive {
			q.active.cancel(ErrRemoved)
		}
		q.mu.Unlock()
		if !isActive {
			q.Finish(image)
		}
	}
}

// next ingests one image: one that has arrived, or else one that is arriving.
func (q *Queue) next(ctx context.Context) error {
	q.mu.Lock()
	arrivals := q.arrivals
	q.mu.Unlock()
	for _, suits := range []func(Transfer) bool{Transfer.Ended, Transfer.Begun} {
		var from Transfer
		image, err := q.store.Next(ctx, func(i catalog.Image) bool {
			from = q.images.Transfer(i)
			return suits(from)
		})
		if errors.Is(err, catalog.ErrNotFound) {
			continue
		}
		if err == nil {
			q.run(ctx, image, from, arrivals)
		}
		return err
	}
	return catalog.ErrNotFound
}

// run ingests an image and records how it ended. An image that was interrupted is queued again.
func (q *Queue) run(ctx context.Context, image catalog.Image, from Transfer, arrivals int) {
	started := time.Now()
	log := q.log.With("image", image.Name, "digest", image.Digest)
	imageCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	imageCtx, stop := context.WithTimeoutCause(imageCtx, q.ImageTime, &report.TooLongError{Limit: q.ImageTime})
	defer stop()
	q.mu.Lock()
	q.active = &active{image, from, cancel}
	if q.arrivals != arrivals {
		q.requeueArriving()
	}
	q.mu.Unlock()
	err := q.images.Ingest(imageCtx, image, from, &q.job(image.N).Progress)
	cause := context.Cause(imageCtx)
	q.mu.Lock()
	q.active = nil
	q.mu.Unlock()

	if err != nil && errors.As(cause, new(*report.TooLongError)) {
		err = cause
	}
	state, why := wire.StateFailed, ""
	var notImage *oci.NotImageError
	switch {
	case err == nil:
		log.Info("image is ready", "duration", time.Since(started))
		q.ready.Go(func() { // the next image does not wait for it
			q.images.Ready(ctx, image)
			q.Finish(image)
		})
		return
	case ctx.Err() != nil || cause == errRequeued:
		q.release(ctx, image)
		return
	case cause == ErrRemoved:
		log.Info("image was removed before it was ready")
		q.Finish(image)
		return
	case errors.As(err, &notImage):
		log.Info("manifest is stored and not ingested", "reason", notImage.Why)
		state = wire.StateStored
	default:
		why = report.Reason(fmt.Errorf("image %s: %w", image.Name, err))
		log.Warn("image failed", "err", why)
	}
	if q.Persist(ctx, "record how an image ended", func(ctx context.Context) error {
		return q.store.End(ctx, image.N, state, why)
	}) == nil {
		q.Finish(image)
	}
}

// release queues an image again. If the hub ends before the catalog has that, the next start does
// it.
func (q *Queue) release(ctx context.Context, image catalog.Image) {
	removed := false
	_ = q.Persist(ctx, "queue an interrupted image again", func(ctx context.Context) error {
		err := q.store.Release(ctx, image.N)
		if removed = errors.Is(err, catalog.ErrNotFound); removed {
			return nil
		}
		return err
	})
	if removed {
		q.Finish(image)
	}
}

// Persist repeats a write to the catalog, which clients wait for, until it succeeds or ctx ends.
// If ctx has ended it tries once.
func (q *Queue) Persist(ctx context.Context, what string, write func(ctx context.Context) error) error {
	for {
		err := write(context.WithoutCancel(ctx))
		if err == nil {
			return nil
		}
		q.log.Error("write to the catalog", "operation", what, "err", err)
		select {
		case <-time.After(storeRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
