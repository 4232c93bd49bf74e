package starts

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
	// maxTries is how often the hub may fail to lay a tree out, or end meanwhile,
	// before it leaves the tree as it is until there is something new; firstRest is
	// how long it waits after the first time, and twice as long after each other.
	maxTries  = 3
	firstRest = time.Minute
	// keep is for how long startup packs are served that no locations name any
	// more, and the traces of images kept that are gone.
	keep = 7 * 24 * time.Hour
	// keepBytes is how much of these packs is kept for so long; what is more goes
	// after keepLeast.
	keepBytes = 8 << 30
	keepLeast = 10 * time.Minute
	// layTimeout bounds the laying out of one tree: others wait for it.
	layTimeout = 15 * time.Minute
	// restShare is for how long a tree rests that was laid out, in units of what that
	// took: whatever nodes send, the hub does little else than what it is for.
	restShare = 4
	// sweepEvery is how often what has to go is looked for.
	sweepEvery = 10 * time.Minute
	// dropAtOnce is how many packs are deleted in one go.
	dropAtOnce = 100
)

// Run lays trees out, one at a time, as there are new traces of them, presses their
// packs in between, and deletes what has had its time, until ctx ends.
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

// next lays out the tree that is due first, if one is, and returns for how long
// none is.
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

// layOut makes the layout of a tree that is due, and notes how that went. An
// error is the catalog's.
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
	if ctx.Err() != nil { // the hub ends, for which the tree is not to blame
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

// letRest has a tree not laid out again for a while.
func (s *Service) letRest(tree chunk.ID, pause time.Duration) {
	if s.Settling == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.rests, func(_ chunk.ID, until time.Time) bool { return until.Before(time.Now()) })
	s.rests[tree] = time.Now().Add(pause)
}

// dueAt returns when a tree is to be laid out of which there is a new trace.
func (s *Service) dueAt(tree chunk.ID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(s.Settling)
	if until := s.rests[tree]; until.After(at) {
		return until
	}
	return at
}

// tell wakes those who wait for a layout.
func (s *Service) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.round)
	s.round, s.current = make(chan struct{}), chunk.ID{}
}

// Await waits until a tree needs no other layout for what is known, or one has
// failed, or ctx ends. Nobody should wait for long: all that is missing are hints.
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

// Sweep deletes startup packs that retired before a time, and has those retired
// of trees that no image has had since, and of those for which there is no room.
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
		if err := s.ingest.Drop(ctx, keys, func() error { return s.catalog.DropRetired(ctx, ids) }); err != nil {
			return err
		}
	}
}
