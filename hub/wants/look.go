package wants

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/jobs"
	"lighter/hub/pull"
	"lighter/hub/registries"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/sleep"
)

const (
	// retryFailed is the time from the failure of an image until a look has it fetched again,
	// although its source has not moved.
	retryFailed = 24 * time.Hour
	// restAfter is the pause after a registry has answered that it gets too many requests, or while
	// the hub has too many images to fetch.
	restAfter = time.Minute
)

// run looks at the sources of an image, as a job.
func (s *Service) run(ctx context.Context, j *jobs.Running) error {
	all, err := s.wants.Of(ctx, j.Key)
	if err != nil {
		return err
	}
	wanted := slices.DeleteFunc(slices.Clone(all), func(w catalog.Wanted) bool { return w.Dropped })
	switch {
	case len(all) == 0: // a removal has forgotten them
		return nil
	case len(wanted) == 0:
		return s.removeUnwanted(ctx, j.Key)
	}
	var errs []error
	for _, w := range wanted {
		if w.Source == "" {
			continue
		}
		if err := s.look(ctx, w); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// look looks at the source of a want, as part of a job. An error is to be tried again.
func (s *Service) look(ctx context.Context, w catalog.Wanted) error {
	from, err := s.Open(ctx, w.Want)
	if err == nil {
		_, err = s.Check(ctx, w, from, jobs.Low)
	}
	switch {
	case errors.Is(err, pull.ErrGone) && w.MayRemove:
		return s.confirmGone(ctx, w)
	case errors.Is(err, pull.ErrGone), errors.Is(err, report.ErrInvalid), errors.Is(err, registry.ErrQuota):
		s.config.Log.Warn("a wanted image was not fetched", "image", w.Name, "wanter", w.By, "err", report.Logged(err))
		return nil // it stays so until something changes
	case errors.Is(err, report.ErrBusy), IsResting(err):
		return &jobs.RetryError{Err: err, After: restOf(err)}
	}
	return err
}

// IsResting reports whether a registry has answered that it gets too many requests.
func IsResting(err error) bool {
	failed := (*transport.Error)(nil)
	return errors.As(err, new(*registries.RestError)) ||
		errors.As(err, &failed) && failed.StatusCode == http.StatusTooManyRequests
}

// restOf returns the pause after an error that IsResting, or that says that the hub is busy.
func restOf(err error) time.Duration {
	if rest := (*registries.RestError)(nil); errors.As(err, &rest) {
		return max(time.Until(rest.Until), time.Second)
	}
	return restAfter
}

// Open opens the source of a want.
func (s *Service) Open(ctx context.Context, w catalog.Want) (*pull.Source, error) {
	ref, _, err := pull.ParseSource(w.Source)
	if err != nil {
		return nil, err
	}
	from, err := s.config.Source(ctx, pull.RepositoryOf(ref), w.PlainHTTP)
	if err != nil {
		return nil, err
	}
	return from.At(ref), nil
}

// Check looks at the source of a want, and has the image fetched if the hub does not have it as the
// source does, with the priority of that job. It records the result with the want. queued reports
// whether the image is to be fetched. Errors are those of pull.Source.Digest and
// images.Service.Queue.
func (s *Service) Check(
	ctx context.Context, w catalog.Wanted, from *pull.Source, priority int64,
) (queued bool, err error) {
	digest, err := from.Digest(ctx)
	if err == nil && !isCurrent(w, digest) {
		queued = true
		digest, err = s.config.Images.Queue(ctx, images.Fetch{Name: w.Name, Source: w.Source, PlainHTTP: w.PlainHTTP,
			Platforms: w.Platforms, Priority: priority}, from)
	}
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, report.ErrBusy):
		return false, err
	case err != nil:
		return false, errors.Join(err, s.wants.Looked(ctx, w.Want, "", report.Reason(err)))
	}
	return queued, s.wants.Looked(ctx, w.Want, digest, "")
}

// isCurrent reports whether nothing is to be done for a want whose source has a digest.
func isCurrent(w catalog.Wanted, digest string) bool {
	return w.Seen == digest && (w.Have > 0 || w.Released) &&
		(w.Failed.IsZero() || time.Since(w.Failed) < retryFailed)
}

// confirmGone ends a want whose source has answered that it does not have the image, if it answers
// so again after a pause. One such answer may be about a registry that is being moved or upgraded.
func (s *Service) confirmGone(ctx context.Context, w catalog.Wanted) error {
	if !sleep.For(ctx, s.Confirm) {
		return context.Cause(ctx)
	}
	from, err := s.Open(ctx, w.Want)
	if err != nil {
		return err
	}
	if _, err := from.Digest(ctx); !errors.Is(err, pull.ErrGone) {
		if err == nil {
			err = &jobs.RetryError{Err: errors.New("the image was away for a moment")}
		}
		return err
	}
	s.config.Log.Info("a wanted image is gone from its source", "image", w.Name, "wanter", w.By)
	return s.Drop(ctx, w.By, w.Name)
}
