package startup

import (
	"context"
	"errors"
	"maps"
	"time"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/objects"
)

const (
	// The hub tries to lay a tree out maxTries times; an end of the hub counts as a failure. Then the
	// tree keeps its layout until there are new traces. firstRest is the first pause, which doubles.
	maxTries  = 3
	firstRest = time.Minute
	// Retired startup packs are served for keep, and traces of removed images are kept as long.
	keep = 7 * 24 * time.Hour
	// keepBytes bounds the retired packs that are kept so long. The others are deleted after keepLeast.
	keepBytes = 8 << 30
	keepLeast = 10 * time.Minute
	// layTimeout bounds the time for one layout, for which the others wait.
	layTimeout = 15 * time.Minute
	// After a layout the tree rests restShare times as long as the layout took, so that layouts take a
	// bounded part of the hub's time whatever nodes send.
	restShare = 4
	// sweepEvery is the interval of Sweep.
	sweepEvery = 10 * time.Minute
	// dropAtOnce bounds the packs deleted in one step.
	dropAtOnce = 100
)

// Run lays trees out when they have new traces, one at a time. In between it recompresses packs and
// deletes retired ones. It returns when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	sweep := time.NewTimer(0)
	defer sweep.Stop()
	note := time.NewTicker(noteEvery)
	defer note.Stop()
	for {
		rest := s.next(ctx)
		if rest > 0 {
			rest = min(rest, s.pressNext(ctx))
		}
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
			defer cancel()
			return s.note(last)
		case <-note.C:
			if err := s.note(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("note which trees were used", "cause", err)
			}
		case <-sweep.C:
			if err := s.Sweep(ctx, time.Now().Add(-s.Keep)); err != nil && ctx.Err() == nil {
				s.log.Error("delete startup packs that have had their time", "cause", err)
			}
			sweep.Reset(sweepEvery)
		case <-s.wake:
		case <-time.After(rest):
		}
	}
}

// next lays out the tree that is due first, if any, and returns the time until the next one is due.
func (s *Service) next(ctx context.Context) time.Duration {
	due, err := s.catalog.NextDue(ctx)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		return sweepEvery
	case err != nil:
		if ctx.Err() == nil {
			s.log.Error("look for what is to be laid out", "cause", err)
		}
		return firstRest
	}
	if wait := time.Until(due.At); wait > 0 {
		return wait
	}
	if err := s.layOut(ctx, due); err != nil && ctx.Err() == nil {
		s.log.Error("note what was laid out", "tree", due.Tree.Short(), "cause", err)
		return firstRest
	}
	return 0
}

// layOut makes the layout of a due tree and records the result. Its error is the catalog's.
func (s *Service) layOut(ctx context.Context, due catalog.Due) error {
	s.mu.Lock()
	s.current = due.Tree
	s.mu.Unlock()
	defer s.tell()
	if due.Tries >= maxTries {
		s.log.Warn("the tree keeps its layout until there is something new", "tree", due.Tree.Short(), "tries", due.Tries)
		s.failed.Add(1)
		return s.catalog.Settle(ctx, due.Tree, due.Changes, time.Now())
	}
	if err := s.catalog.Try(ctx, due.Tree, time.Now().Add(firstRest<<due.Tries)); err != nil {
		return err
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, layTimeout)
	done, err := s.lay(limited, due)
	cancel()
	s.letRest(due.Tree, restShare*time.Since(begin))
	if ctx.Err() != nil { // the hub ends: the attempt does not count
		return s.catalog.Settle(context.WithoutCancel(ctx), due.Tree, -1, time.Now())
	}
	if err != nil {
		s.log.Warn("a tree could not be laid out", "tree", due.Tree.Short(), "cause", err)
		return nil // it is tried again
	}
	if done != "" {
		s.log.Info("a tree was laid out", "tree", due.Tree.Short(), "what", done, "seconds", time.Since(begin).Seconds())
	}
	if err := s.catalog.Settle(ctx, due.Tree, due.Changes, s.dueAt(due.Tree)); err != nil || done == "" {
		return err
	}
	return s.bound(ctx)
}

// letRest delays the next layout of a tree.
func (s *Service) letRest(tree chunk.ID, pause time.Duration) {
	if s.Settling == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.rests, func(_ chunk.ID, until time.Time) bool { return until.Before(time.Now()) })
	s.rests[tree] = time.Now().Add(pause)
}

// dueAt returns when a tree with a new trace is due.
func (s *Service) dueAt(tree chunk.ID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(s.Settling)
	if until := s.rests[tree]; until.After(at) {
		return until
	}
	return at
}

// tell wakes the callers of Await.
func (s *Service) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.round)
	s.round, s.current = make(chan struct{}), chunk.ID{}
}

// Await waits until a tree's layout is up to date, an attempt has failed, or ctx ends. Callers should
// not wait for long, as layouts are only hints.
func (s *Service) Await(ctx context.Context, tree chunk.ID) error {
	for {
		s.mu.Lock()
		round := s.round
		s.mu.Unlock()
		due, err := s.catalog.DueOf(ctx, tree)
		if err != nil || due.At.IsZero() {
			return err
		}
		s.mu.Lock()
		current := s.current
		s.mu.Unlock()
		if due.Tries > 0 && current != tree {
			return nil
		}
		s.wakeUp()
		select {
		case <-round:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Sweep deletes startup packs that retired before a time. It retires the packs of trees that no image
// has had since then, and of trees for which there is no room.
func (s *Service) Sweep(ctx context.Context, before time.Time) error {
	if err := s.catalog.Unserved(ctx, before); err != nil {
		return err
	}
	if err := s.bound(ctx); err != nil {
		return err
	}
	limit, err := s.Limit(ctx)
	if err != nil {
		return err
	}
	for {
		ids, err := s.catalog.Retired(ctx, before, time.Now().Add(-keepLeast), min(keepBytes, limit), dropAtOnce)
		if err != nil || len(ids) == 0 {
			return err
		}
		var keys []string
		for _, id := range ids {
			keys = append(keys, objects.PackKey(id))
		}
		if err := s.publisher.Delete(ctx, keys, func() error { return s.catalog.DropRetired(ctx, ids) }); err != nil {
			return err
		}
	}
}
