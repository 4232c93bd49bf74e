package wishlist

import (
	"context"
	"maps"
	"slices"

	"lighter/hub/report"
	"lighter/wire"
)

const (
	maxNew      = 10_000 // names that a plan lists
	namesAtOnce = 200    // that are looked up in the catalog
)

// Plan reads a list, which need not be added, and returns what a pass would do. It changes nothing.
// It lists repositories and tags, but does not look at images: those that have moved count as
// unchanged. It calls send for each step, and ends with ctx. The error wraps report.ErrInvalid if
// the list is invalid, and report.ErrBusy if enough plans are being made.
func (s *Service) Plan(
	ctx context.Context, w wire.Wishlist, send func(wire.Progress) error,
) (r *wire.WishlistResult, err error) {
	defer func() { err = report.Error(err) }()
	l, err := s.planned(ctx, w)
	if err != nil {
		return nil, err
	}
	if !s.plans.TryAcquire(1) {
		return nil, report.ErrBusy
	}
	defer s.plans.Release(1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var progress report.Progress
	p, err := s.newPass(ctx, l, &progress)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		failed = p.plan(ctx)
	}()
	err = report.NewSender(send).Await(ctx, done, &progress)
	cancel() // when the client has gone
	<-done
	if err == nil {
		err = failed
	}
	return &p.result, err
}

// planned returns the list that a plan is about: a list of the hub, if w has nothing but its name.
func (s *Service) planned(ctx context.Context, w wire.Wishlist) (List, error) {
	if List(w).isEmpty() {
		return s.find(ctx, w.Name)
	}
	return List(w), s.check(w)
}

// plan finds out what the pass would do.
func (p *pass) plan(ctx context.Context) error {
	if err := p.expand(ctx); err != nil {
		return err
	}
	gone, live := p.compare()
	p.judge(int64(len(gone)), live, false)
	for names := range slices.Chunk(slices.Sorted(maps.Keys(p.targets)), namesAtOnce) {
		known, err := p.config.Catalog.Known(ctx, names)
		if err != nil {
			return err
		}
		unknown := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(known, name) })
		p.result.Unchanged += int64(len(known))
		p.result.Fetched += int64(len(unknown))
		p.result.New = append(p.result.New, unknown[:min(len(unknown), maxNew-len(p.result.New))]...)
	}
	p.sortProblems()
	p.estimate(ctx)
	return nil
}
