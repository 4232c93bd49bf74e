package starts

import (
	"context"
	"time"

	"lighter/format/chunk"
)

const (
	// All startup packs together may take an ordinaryShare of what all other packs
	// take, and leastLimit at least, where nothing else is configured.
	ordinaryShare = 4
	leastLimit    = 8 << 30

	// noteEvery is how often it is noted which trees were used, and maxUsed how many
	// are remembered in between.
	noteEvery = time.Minute
	maxUsed   = 10_000
	// noteTimeout bounds the last time, when the hub ends.
	noteTimeout = 2 * time.Second
	// regain is for how long a tree that has lost its startup packs does without, also
	// if it is used: where more trees are in use than there is room for, the hub would
	// make packs all the time.
	regain = time.Hour
)

// Limit returns what all startup packs together may take, those apart that no
// locations name any more, in bytes.
func (s *Service) Limit(ctx context.Context) (int64, error) {
	if s.limit > 0 {
		return s.limit, nil
	}
	ordinary, err := s.catalog.PackBytes(ctx)
	return max(ordinary/ordinaryShare, leastLimit), err
}

// Used says that somebody wants to start what is in a tree.
func (s *Service) Used(tree chunk.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.used[tree]; known || len(s.used) < maxUsed {
		s.used[tree] = time.Now()
	}
}

// note tells the catalog which trees were used.
func (s *Service) note(ctx context.Context) error {
	s.mu.Lock()
	used := s.used
	s.used = map[chunk.ID]time.Time{}
	s.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return s.catalog.Used(ctx, used, time.Now().Add(-s.Regain))
}

// bound has trees lose their startup packs until those of all are within the
// limit. They are due, to be laid out without.
func (s *Service) bound(ctx context.Context) error {
	if err := s.note(ctx); err != nil {
		return err
	}
	limit, err := s.Limit(ctx)
	if err != nil {
		return err
	}
	lost, err := s.catalog.Lose(ctx, limit)
	for _, tree := range lost {
		s.log.Info("a tree loses its startup packs: all together are too long, and others were used since", "tree", tree.Short(), "limit", limit)
	}
	return err
}
