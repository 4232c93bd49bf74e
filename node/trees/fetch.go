package trees

import (
	"context"
	"errors"
	"fmt"
	"os"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/node/flight"
)

// Ensure fetches a tree's index unless it is on this machine, verified and synced to the disk, and
// prefetches the chunks of the tree's start. It fails if nothing arrives for a while. It calls
// begun when the first bytes are verified to be of the tree's index.
func (s *Store) Ensure(ctx context.Context, tree chunk.ID, begun func()) error {
	if s.Has(tree) {
		s.prefetchStart(tree)
		s.Refresh(tree)
		return nil
	}
	err := s.fetch(ctx, tree, false, begun)
	if err == nil {
		s.prefetchStart(tree)
	}
	return err
}

// refetch replaces the index of a tree on this machine. If the tree is removed meanwhile, it
// stays removed.
func (s *Store) refetch(ctx context.Context, tree chunk.ID) error {
	return s.fetch(ctx, tree, true, func() {})
}

// damagedError says that a tree's index is damaged on the disk.
type damagedError struct{ error }

func (e damagedError) Unwrap() error { return e.error }

// damaged makes an error of reading an index a damagedError if the files are the reason.
func damaged(err error) error {
	if isDamage(err) {
		return damagedError{err}
	}
	return err
}

// WithRepair calls use, which reads a tree's index. If the index is damaged on the disk, it fetches
// the index again and calls use once more. use takes the tree's lock itself: it must not be held
// while the index is fetched.
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

// fetchKey names one kind of fetch: an index that is missing, or one that replaces a damaged one.
type fetchKey struct {
	tree    chunk.ID
	replace bool
}

// fetch waits for a download of a tree's index, which it shares with other callers. It calls begun
// when the index begins to arrive.
func (s *Store) fetch(ctx context.Context, tree chunk.ID, replace bool, begun func()) error {
	key := fetchKey{tree, replace}
	call := s.fetches.Join(key, func(ctx context.Context, c *flight.Call) error {
		if !replace && s.Has(tree) { // fetched since the caller looked
			return nil
		}
		return s.download(ctx, key, c.Begin)
	})
	err := call.WaitBegun(ctx)
	if err == nil {
		begun()
		err = call.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("fetch index %s: %w", tree.Short(), err)
	}
	return nil
}

// download fetches an index to a directory of its own, then publishes it.
func (s *Store) download(ctx context.Context, key fetchKey, begun func()) (err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	// A unique name: leftovers of another download cannot be in the way.
	fresh, err := os.MkdirTemp(Dir(s.root), newPrefix+key.tree.String()+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.leftovers.Remove(fresh)
		}
	}()
	if err := s.fetchParts(ctx, key.tree, fresh, begun); err != nil {
		return err
	}
	return s.publish(ctx, key, fresh)
}

var errRemoved = errors.New("the tree was removed meanwhile")

// publish moves a fetched index to its place, over a damaged one.
func (s *Store) publish(ctx context.Context, key fetchKey, fresh string) error {
	tree := key.tree
	unlock, err := s.LockContext(ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	switch has := s.Has(tree); {
	case key.replace && !has:
		return errRemoved
	case !key.replace && has: // it was fetched meanwhile
		s.leftovers.Remove(fresh)
		return nil
	}
	if err := durable.Discard(s.dir(tree), s.removing(tree)); err != nil {
		return err
	}
	s.forgetLocal(tree)
	return durable.Publish(fresh, s.dir(tree))
}
