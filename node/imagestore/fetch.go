package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/store"
	"lighter/wire"
)

// missing returns the images that are not in a list, without those that would get no name, and
// those that were tried in this round. Those that failed most often come last: they do not keep
// others from the store.
func (s *Store) missing(l *list, listed []wire.Image, tried map[string]bool) (missing []wire.Image) {
	images, taken := l.byManifest(), l.takenNames()
	for _, i := range listed {
		if !tried[i.Name] && l.find(images, i) == nil && !s.unnamed.has(i, taken) {
			missing = append(missing, i)
		}
	}
	slices.SortStableFunc(missing, func(a, b wire.Image) int { return cmp.Compare(s.failed[a.Name], s.failed[b.Name]) })
	return missing
}

// fetched is the result of fetch.
type fetched struct {
	described []description
	failed    []string // names of the images that could not be fetched
	err       error    // the first of their errors
	away      error    // not nil: no hub answers any more, and some images were not requested
}

// fetch gets the descriptions of images. It begins no request once awayAfter requests in a row had
// no answer.
func (s *Store) fetch(ctx context.Context, images []wire.Image) (f fetched) {
	var mu sync.Mutex // guards f and unanswered
	unanswered := 0
	isAway := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return f.away != nil
	}
	var group errgroup.Group
	group.SetLimit(fetches)
	for _, i := range images {
		if isAway() || ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			d, err := s.fetchOne(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				f.described = append(f.described, d)
				unanswered = 0
				return nil
			}
			f.failed, f.err = append(f.failed, i.Name), cmp.Or(f.err, err)
			if unanswered++; !isUnanswered(err) {
				unanswered = 0
			}
			if unanswered == awayAfter {
				f.away = err
			}
			return nil
		})
	}
	_ = group.Wait() // it has no errors
	return f
}

// isUnanswered reports whether an error says that no hub gave an answer.
func isUnanswered(err error) bool {
	return errors.As(err, new(store.Unavailable)) || errors.Is(err, context.DeadlineExceeded)
}

func (s *Store) fetchOne(ctx context.Context, i wire.Image) (d description, err error) {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	all, err := s.config.Contents.Image(ctx, i)
	if err != nil {
		return d, err
	}
	manifest, err := s.config.Hub.Manifest(ctx, i.Digest)
	if err != nil {
		return d, fmt.Errorf("get the sizes of the layers of image %s: %w", i.Name, err)
	}
	return describe(i, all, manifest.LayerBytes)
}
