package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/wire"
)

// taken is the image that is being taken in. Only one is at a time, so whoever
// adds packs and chunks to the catalog knows all that is there.
type taken struct {
	catalog.Image
	from   *imageCopy // that brings it; nil: its blobs were all there
	cancel context.CancelCauseFunc
}

var (
	errTakenAway = errors.New("it was taken away")
	// errPutBack ends the work on an image whose turn comes again.
	errPutBack = errors.New("another image comes first")
)

// tooLongError ends the work on an image that would keep others from theirs.
type tooLongError struct{ limit time.Duration }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("it took longer than an image may, %v (limits.image_minutes)", e.limit)
}

// takeNext takes one image in. Those come first whose blobs are all there: one
// that is on its way may depend on a source that takes its time.
func (s *Service) takeNext(ctx context.Context) error {
	s.mu.Lock()
	arrivals := s.arrivals
	s.mu.Unlock()
	for _, suits := range []func(*imageCopy) bool{(*imageCopy).ended, (*imageCopy).begun} {
		var from *imageCopy
		image, err := s.catalog.Next(ctx, func(i catalog.Image) bool {
			from = s.copyOf(i)
			return suits(from)
		})
		if errors.Is(err, catalog.ErrNotFound) {
			continue
		}
		if err == nil {
			s.take(ctx, image, from, arrivals)
		}
		return err
	}
	return catalog.ErrNotFound
}

// take takes an image in and notes how it ended. If the hub is ending, or
// another image comes first, its turn comes again.
func (s *Service) take(ctx context.Context, image catalog.Image, from *imageCopy, arrivals int) {
	started := time.Now()
	log := s.config.Log.With("image", image.Name, "digest", image.Digest)
	imageCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	imageCtx, stop := context.WithTimeoutCause(imageCtx, s.ImageTime, &tooLongError{s.ImageTime})
	defer stop()
	s.mu.Lock()
	s.taken = &taken{image, from, cancel}
	if s.arrivals != arrivals {
		s.giveWay()
	}
	s.mu.Unlock()
	err := s.ingest(imageCtx, image, from)
	cause := context.Cause(imageCtx)
	s.mu.Lock()
	s.taken = nil
	s.mu.Unlock()

	state, why := wire.StateFailed, ""
	if err != nil && errors.As(cause, new(*tooLongError)) {
		err = cause
	}
	var notImage *notImageError
	switch {
	case err == nil:
		log.Info("image is ready", "seconds", time.Since(started).Seconds())
		s.afterwards.Go(func() { // others need not wait for it
			s.awaitReady(ctx, image)
			s.finish(image)
		})
		return
	case ctx.Err() != nil || cause == errPutBack:
		s.putBack(image)
		return
	case cause == errTakenAway:
		log.Info("image was taken away before it was ready")
		s.finish(image)
		return
	case errors.As(err, &notImage):
		log.Info("kept and served, not taken in", "why", notImage.why)
		state = wire.StateStored
	default:
		why = report.Reason(fmt.Errorf("image %s: %w", image.Name, err))
		log.Warn("image failed", "cause", why)
	}
	if s.persist("note how an image ended", func(ctx context.Context) error {
		return s.catalog.End(ctx, image.N, state, why)
	}) == nil {
		s.finish(image)
	}
}

// readyTimeout bounds what else is done for an image before those who wait for it
// hear that it is ready.
const readyTimeout = 20 * time.Second

// awaitReady has done what Config.Ready does. Images are ready without it.
func (s *Service) awaitReady(ctx context.Context, image catalog.Image) {
	if s.config.Ready == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	now, err := s.catalog.Numbered(ctx, []int64{image.N})
	if err == nil && len(now) > 0 && now[0].State == wire.StateReady {
		err = s.config.Ready(ctx, now[0])
	}
	if err != nil && ctx.Err() == nil {
		s.config.Log.Warn("prepare the first start of an image", "image", image.Name, "cause", err)
	}
}

// putBack puts an image back into the queue, unless it was taken away. If the hub
// ends before that can be noted, the next start does it.
func (s *Service) putBack(image catalog.Image) {
	gone := false
	_ = s.persist("put an image back into the queue", func(ctx context.Context) error {
		err := s.catalog.Release(ctx, image.N)
		if gone = errors.Is(err, catalog.ErrNotFound); gone {
			return nil
		}
		return err
	})
	if gone {
		s.finish(image)
	}
}

// arrived says that an image waits whose blobs are all there.
func (s *Service) arrived() {
	s.mu.Lock()
	s.arrivals++
	s.giveWay()
	s.mu.Unlock()
	s.wakeUp()
}

// giveWay puts the image back that is being taken in if it waits for its source.
// s.mu is held.
func (s *Service) giveWay() {
	if t := s.taken; t != nil && !t.from.ended() {
		t.cancel(errPutBack)
	}
}

// drop ends the work on images that are gone from the catalog.
func (s *Service) drop(gone []catalog.Image) {
	for _, image := range gone {
		s.mu.Lock()
		taking := s.taken != nil && s.taken.N == image.N
		if taking {
			s.taken.cancel(errTakenAway)
		}
		s.mu.Unlock()
		if !taking {
			s.finish(image)
		}
	}
}
