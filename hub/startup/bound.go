package startup

import (
	"context"
	"time"

	"lighter/format/chunk"
)

const (
	// By default all startup packs together may take 1/ordinaryShare of the bytes of all other packs,
	// and leastLimit at least.
	ordinaryShare = 4
	leastLimit    = 8 << 30

	// The last uses of trees are written to the catalog every noteEvery. maxUsed bounds those kept in
	// memory until then.
	noteEvery = time.Minute
	maxUsed   = 10_000
	// noteTimeout bounds the last write, when the hub ends.
	noteTimeout = 2 * time.Second
	// A tree that lost its startup packs gets new ones after regain at the earliest. If more trees
	// are in use than there is room for, the hub would otherwise make packs all the time.
	regain = time.Hour
)

// Limit returns how many bytes all startup packs together may take. Retired ones do not count.
func (s *Service) Limit(ctx context.Context) (int64, error) {
	if s.limit > 0 {
		return s.limit, nil
	}
	ordinary, err := s.catalog.PackBytes(ctx)
	return max(ordinary/ordinaryShare, leastLimit), err
}

// Used records that a tree was used: a start of it is likely.
func (s *Service) Used(tree chunk.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.used[tree]; known || len(s.used) < maxUsed {
		s.used[tree] = time.Now()
	}
}

// note writes the last uses of trees to the catalog.
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

// bound evicts startup packs of the least recently used trees until all are within the limit. These
// trees become due, to be laid out without packs.
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
