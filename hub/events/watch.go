package events

import (
	"context"
	"slices"

	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/sleep"
	"lighter/wire"
)

const (
	maxWatches = 64 // clients that watch at a time
	// maxOverlap bounds the events that a watch reads again at each look. With PostgreSQL, an event
	// may become visible after later ones: its transaction may last for some seconds.
	maxOverlap = 256
)

// Watch sends the images of a name, or all images if it is empty, as they are now, and then each
// change, until ctx ends or send fails. A change may be sent that the first states contain already.
// The error is report.ErrBusy if too many clients watch.
func (s *Service) Watch(ctx context.Context, name string, send func(wire.Event) error) error {
	select {
	case s.watches <- struct{}{}:
		defer func() { <-s.watches }()
	default:
		return report.ErrBusy
	}
	seen, err := s.events.Latest(ctx, maxOverlap) // before the images are read, so that no change is missed
	if err != nil {
		return err
	}
	slices.Reverse(seen)
	images, err := s.config.Catalog.Images(ctx, name)
	if err != nil {
		return err
	}
	for _, i := range images {
		if err := send(wire.Event{Kind: i.State, Domain: s.config.Domain, Name: i.Name, Digest: i.Digest, Root: i.Root,
			Platform: i.Platform, Error: i.Error, At: i.Updated}); err != nil {
			return err
		}
	}
	for sleep.For(ctx, lookEvery) {
		if seen, err = s.follow(ctx, name, seen, send); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// follow sends the events that are not among those seen. It returns the ones that are seen now, at
// most maxOverlap, in their order.
func (s *Service) follow(
	ctx context.Context, name string, seen []catalog.Event, send func(wire.Event) error,
) ([]catalog.Event, error) {
	from := int64(0)
	if len(seen) > 0 {
		from = seen[0].N - 1
	}
	events, err := s.events.After(ctx, from, maxOverlap+maxListed)
	if err != nil {
		return seen, err
	}
	for _, e := range events {
		if slices.ContainsFunc(seen, func(old catalog.Event) bool { return old.N == e.N }) {
			continue
		}
		if name == "" || e.Name == name {
			if err := send(s.describe(e)); err != nil {
				return seen, err
			}
		}
	}
	return events[max(0, len(events)-maxOverlap):], nil
}
