package trees

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
)

// newer fetches locations of trees that are on this machine, because the hub may have better ones.
type newer struct {
	locks locks         // held while a tree's locations are fetched, so that they are fetched once
	slots chan struct{} // has a value for each tree whose locations are being fetched
	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu    sync.Mutex                 // guards what follows
	tried map[chunk.ID]chan struct{} // attempts in flight; closed when they end
	ended bool
}

func newNewer() *newer {
	n := &newer{locks: newLocks(), slots: make(chan struct{}, locateTogether), tried: map[chunk.ID]chan struct{}{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// Refresh fetches newer locations of a tree in the background, unless that was tried lately. It
// is called when the tree is about to start. A tree with a local device needs no locations.
func (s *Store) Refresh(tree chunk.ID) {
	if _, local := s.HasLocal(tree); !local {
		s.refresh(tree)
	}
}

// refresh fetches newer locations in the background, unless that was tried lately, and gives them
// to the tree's devices. The channel is closed when the attempt has ended.
func (s *Store) refresh(tree chunk.ID) <-chan struct{} {
	n := s.newer
	n.mu.Lock()
	defer n.mu.Unlock()
	if tried := n.tried[tree]; tried != nil {
		return tried
	}
	if n.ended {
		return closed
	}
	tried := make(chan struct{})
	n.tried[tree] = tried
	n.work.Go(func() {
		log := s.log.With("tree", tree.Short())
		if changed, err := s.refreshOnce(tree); err != nil {
			log.Debug("cannot refresh locations", "err", err)
		} else if changed {
			log.Info("fetched newer locations")
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.tried, tree)
		close(tried)
	})
	return tried
}

func (s *Store) refreshOnce(tree chunk.ID) (changed bool, err error) {
	path := s.locations(tree)
	if old, err := isOld(path); err != nil || !old {
		return false, err
	}
	// Before the attempt and on the disk, so that a node that restarts does not ask again.
	if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil {
		return false, err
	}
	extents, file, err := s.openMap(tree)
	if err != nil {
		return false, err
	}
	if err := file.Close(); err != nil {
		return false, err
	}
	if changed, err = s.updateLocations(s.newer.ctx, tree, extents.Extents); !changed {
		return false, err
	}
	return true, s.relocate(tree)
}

// relocate gives the locations on the disk to the tree's open devices. They may be the first that
// name startup packs, so it also prefetches the start.
func (s *Store) relocate(tree chunk.ID) (err error) {
	for _, o := range s.opened(tree) {
		err = errors.Join(err, o.locating.reopen())
	}
	s.prefetchStart(tree)
	return err
}

// isOld reports whether locations were neither fetched nor refreshed for a while.
func isOld(path string) (bool, error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	age := time.Since(info.ModTime())
	return age < 0 || age >= refreshAge, nil // age < 0: the clock was set back
}

// updateLocations fetches the locations of a tree that is on this machine. If they differ from
// those on the disk, it checks them and puts them in their place.
func (s *Store) updateLocations(ctx context.Context, tree chunk.ID, extents int64) (changed bool, err error) {
	unlock, err := s.newer.locks.LockContext(ctx, tree)
	if err != nil {
		return false, err
	}
	defer unlock()
	select {
	case s.newer.slots <- struct{}{}:
		defer func() { <-s.newer.slots }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	path := s.locations(tree)
	fresh := path + ".new"
	if err := removeIfExists(fresh); err != nil { // left by a crash
		return false, err
	}
	defer func() {
		if !changed {
			err = errors.Join(err, removeIfExists(fresh))
		}
	}()
	have, err := sumOf(path)
	if err != nil {
		have = chunk.ID{} // missing or unreadable
	}
	known := func() (int64, error) { return extents, nil }
	if err := s.fetchLocations(ctx, tree, have, fresh, known); err != nil {
		return false, err
	}
	fetched, err := sumOf(fresh)
	if errors.Is(err, os.ErrNotExist) || err == nil && fetched == have {
		return false, nil
	}
	if err == nil {
		err = durable.Publish(fresh, path)
	}
	return err == nil, err
}

func sumOf(path string) (sum chunk.ID, err error) {
	file, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return sum, err
	}
	return chunk.ID(h.Sum(nil)), nil
}

// end ends all fetches, and waits until none is in flight.
func (n *newer) end() {
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.stop()
	n.work.Wait()
}
