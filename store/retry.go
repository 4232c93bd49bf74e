package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/sleep"
)

// retryBackoff has the pauses between two tries of a reader. It has jitter because readers that
// failed together must not try again at the same time.
var retryBackoff = sleep.Backoff{First: 100 * time.Millisecond, Most: maxPause, Jitter: 0.5}

// retry repeats a reader's request.
type retry struct {
	pauses    sleep.Backoff // retryBackoff; shorter in tests
	isLoading func() bool   // whether a chunk that no origin has may still turn up in the cache
	retries   atomic.Int64
	absent    absences
}

// do calls try until it succeeds or ctx ends. It also ends when all origins have answered for
// missingTime that they do not have the chunk. Recent answers to other calls for the same chunk
// count, too. While isLoading returns true, no answer counts.
func (r *retry) do(ctx context.Context, ref chunk.Ref, try func() error) error {
	var before error
	var missing time.Time // since when all origins answer that they do not have the chunk; zero: some may have it
	for failures := 1; ; failures++ {
		err := try()
		if err == nil || ctx.Err() == nil && (!isMissing(err) || r.isLoading()) {
			r.absent.forget(ref)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return endOf(ctx, cmp.Or(before, err))
		}
		before = err
		switch {
		case !isMissing(err) || r.isLoading():
			missing = time.Time{}
		case r.absent.missed(ref, err):
			return err
		case missing.IsZero():
			missing = time.Now()
		case time.Since(missing) >= missingTime:
			return err
		}
		r.retries.Add(1)
		wait := r.pauses.After(failures)
		var busy Unavailable
		if errors.As(err, &busy) {
			wait = max(wait, min(busy.RetryAfter(), maxPause))
		}
		if !sleep.For(ctx, wait) {
			return endOf(ctx, err)
		}
	}
}

// endOf returns an error that says why ctx ended, together with err: the error of the last try that
// ended before ctx did, or of the only try. If err wraps the cause, endOf returns only err.
func endOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fmt.Errorf("%w; before that: %w", cause, err)
	}
	return err
}

// isAnswer reports whether err means that the source has answered, but not with the chunk.
func isAnswer(err error) bool {
	return errors.Is(err, chunk.ErrNotFound) || errors.As(err, new(*chunk.InvalidError))
}

// isMissing reports whether err means that no origin has the chunk. A wrong answer does not mean
// that: another unit may hold the chunk.
func isMissing(err error) bool {
	return errors.Is(err, chunk.ErrNotFound) && !errors.As(err, new(*chunk.InvalidError))
}
