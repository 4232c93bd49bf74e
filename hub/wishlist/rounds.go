package wishlist

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/hub/report"
	"lighter/hub/wants"
	"lighter/sleep"
)

// isLater reports whether something is to be done again after a pause.
func isLater(err error) bool { return errors.Is(err, report.ErrBusy) || wants.IsResting(err) }

// maxRests bounds the pauses of a pass, so that a registry that always answers 429 does not hold it
// for ever. A hub that is busy with images is not such a case.
const maxRests = 30

// rounds calls do for each item, looksAtOnce at a time. If an error isLater, because a registry has
// answered 429 or the hub has very many images to fetch, the item is done again after a pause, one
// item at a time. Other errors are not expected. rounds returns the items for which maxRests pauses
// were not enough.
func rounds[T any](ctx context.Context, rest time.Duration, items []T, do func(T) error) (left []T) {
	var mu sync.Mutex
	group := errgroup.Group{}
	group.SetLimit(looksAtOnce)
	for _, item := range items {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if isLater(do(item)) {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, item)
			}
			return nil
		})
	}
	_ = group.Wait() // no error
	for rests := 0; len(left) > 0 && rests < maxRests; {
		if !sleep.For(ctx, rest) {
			break
		}
		var again []T
		resting := false
		for i, item := range left {
			err := do(item)
			if !isLater(err) {
				continue
			}
			if again = append(again, item); errors.Is(err, report.ErrBusy) {
				again = append(again, left[i+1:]...)
				break
			}
			resting = true
		}
		if resting && len(again) == len(left) {
			rests++
		}
		left = again
	}
	return left
}
