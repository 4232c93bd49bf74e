package trees

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/flight"
)

// Ensure makes sure that a tree's index is on this machine. If the index is missing, Ensure fetches
// it, verifies it and syncs it to the disk; otherwise Ensure requests newer locations. In both
// cases Ensure prefetches the chunks of the tree's start, unless the tree is open already or has a
// local device.
//
// A fetch fails after fetchTimeout at the latest. It calls begun once, when the first part of the
// index (header and page table) is verified. The caller makes sure that no two calls fetch the same
// tree at the same time.
func (s *Store) Ensure(ctx context.Context, tree chunk.ID, begun func()) error {
	if s.Has(tree) {
		s.prefetchStart(tree)
		s.Refresh(tree)
		return nil
	}
	err := s.download(ctx, tree, false, sync.OnceFunc(begun))
	if err == nil {
		s.prefetchStart(tree)
	}
	return err
}

// refetch replaces the index of a tree on this machine, in one download for all callers. If the
// tree is removed meanwhile, it stays removed.
func (s *Store) refetch(ctx context.Context, tree chunk.ID) error {
	return s.refetches.Join(tree, func(ctx context.Context, _ *flight.Call) error {
		return s.download(ctx, tree, true, func() {})
	}).Wait(ctx)
}

// damagedError says that a tree's index is damaged on the disk: see isDamage.
type damagedError struct{ error }

func (e damagedError) Unwrap() error { return e.error }

// damaged turns an error of reading an index into a damagedError if a damaged, missing or
// unreadable file is the cause.
func damaged(err error) error {
	if isDamage(err) {
		return damagedError{err}
	}
	return err
}

// WithRepair calls use, which reads a tree's index. If the index is damaged on the disk, it fetches
// the index again and calls use once more. The caller does not hold the tree's lock, because the
// lock must not be held while the index is fetched. If use needs the lock, use takes it.
func (s *Store) WithRepair(ctx context.Context, tree chunk.ID, use func() error) error {
	err := use()
	if !errors.As(err, new(damagedError)) || !s.Has(tree) {
		return err
	}
	s.log.Warn("an index is damaged on the disk: fetching it again", "tree", tree.Short(), "err", err)
	if failed := s.refetch(ctx, tree); failed != nil {
		return errors.Join(err, failed)
	}
	return use()
}

// download fetches an index to a directory of its own, then publishes it: as a new tree, or, if
// replace is true, over a damaged one.
func (s *Store) download(ctx context.Context, tree chunk.ID, replace bool, begun func()) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	// The name is unique, so that leftovers of another download cannot be in the way.
	fresh, err := os.MkdirTemp(Dir(s.root), newPrefix+tree.String()+"-")
	if err == nil {
		if err = s.fetchParts(ctx, tree, fresh, begun); err == nil {
			err = durable.SyncFiles(fresh)
		}
		if err == nil {
			err = s.publish(ctx, tree, replace, fresh)
		}
		if err != nil {
			s.leftovers.Remove(fresh)
		}
	}
	if err != nil {
		return fmt.Errorf("fetch index %s: %w", tree.Short(), err)
	}
	return nil
}

var errRemoved = errors.New("the tree was removed meanwhile")

// publish moves a fetched index to its place.
func (s *Store) publish(ctx context.Context, tree chunk.ID, replace bool, fresh string) error {
	unlock, err := s.LockContext(ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	switch has := s.Has(tree); {
	case replace && !has:
		return errRemoved
	case !replace && has: // another call has fetched it, although the callers should exclude that
		s.leftovers.Remove(fresh)
		return nil
	}
	if err := durable.Discard(s.dir(tree), s.removing(tree)); err != nil {
		return err
	}
	s.forgetLocal(tree)
	return durable.Publish(fresh, s.dir(tree))
}
