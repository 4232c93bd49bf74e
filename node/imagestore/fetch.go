package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"lighter/store"
	"lighter/wire"
)

// missing returns the images that are not in a list, without those that have failed in this round.
// Those that failed in the last one come last: they do not keep others from the store.
func (s *Store) missing(l *list, listed []wire.Image, failed map[string]bool) (missing []wire.Image) {
	images := l.byManifest()
	var again []wire.Image
	for _, i := range listed {
		switch {
		case failed[i.Name] || l.find(images, i) != nil:
		case s.failed[i.Name]:
			again = append(again, i)
		default:
			missing = append(missing, i)
		}
	}
	return append(missing, again...)
}

// fetched is the result of fetch.
type fetched struct {
	described []description
	failed    []string // names of the images that could not be fetched
	err       error    // the first of their errors
	away      error    // not nil: no hub answers any more, and some images were not requested
}

// fetch gets the descriptions of images. It ends once awayAfter requests in a row had no answer.
func (s *Store) fetch(ctx context.Context, images []wire.Image) (f fetched) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(fetches)
	unanswered := 0
	for _, i := range images {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			d, err := s.fetchOne(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				f.described = append(f.described, d)
				unanswered = 0
				return nil
			case ctx.Err() != nil:
				return nil
			case isUnanswered(err):
				unanswered++
			default:
				unanswered = 0
			}
			f.failed, f.err = append(f.failed, i.Name), cmp.Or(f.err, err)
			if unanswered == awayAfter {
				f.away = err
				end()
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
