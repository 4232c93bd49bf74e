package trees

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/sleep"
	"lighter/wire/client"
)

// locateBackoff has the pauses between attempts to fetch the locations of one tree. It has jitter
// because the attempts of many nodes may have failed at the same time.
var locateBackoff = sleep.Backoff{First: time.Second, Most: maxLocatePause, Jitter: 0.5}

// locator fetches locations of trees on this machine in the background. It fetches missing or
// damaged locations until they arrive or the tree is closed. It fetches newer locations because
// they may name better startup packs.
type locator struct {
	slots chan struct{} // has a value for each tree whose locations are being fetched
	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu    sync.Mutex // guards what follows
	trees map[chunk.ID]*locating
}

// locating is the state of a tree with an attempt in flight, or of an open tree without locations.
type locating struct {
	ctx    context.Context // of its attempts
	stop   context.CancelFunc
	busy   bool          // an attempt is in flight
	tried  chan struct{} // closed when the last attempt has ended
	next   time.Time     // no other attempt starts before this time
	failed int           // number of attempts that have left the tree without locations
	retry  *time.Timer   // the pending attempt; nil: no attempt is pending
}

func newLocator() *locator {
	l := &locator{slots: make(chan struct{}, locateTogether), trees: map[chunk.ID]*locating{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// end ends all fetches, and waits until none is in flight.
func (l *locator) end() {
	l.mu.Lock()
	l.stop()
	l.mu.Unlock()
	l.work.Wait()
}

// forget ends the attempts for a tree that was closed.
func (l *locator) forget(tree chunk.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state := l.trees[tree]; state != nil {
		state.stop()
		state.stopRetry()
		delete(l.trees, tree)
	}
}

// stopRetry cancels the pending attempt, if there is one. The caller holds the locator's mu.
func (l *locating) stopRetry() {
	if l.retry != nil {
		l.retry.Stop()
	}
}

// Refresh fetches newer locations of a tree in the background, unless that was tried lately. It is
// called when a container is about to start from the tree. A tree with a local device needs no
// locations.
func (s *Store) Refresh(tree chunk.ID) {
	if _, local := s.HasLocal(tree); !local {
		s.refresh(tree)
	}
}

// RenewLocations refreshes the locations of served trees once a day, one tree at a time, until ctx
// ends. A container may run for longer than the week after which a hub deletes a pack that newer
// locations do not name. Each node refreshes locations at random times. The hub does not count
// these requests as starts.
func (s *Store) RenewLocations(ctx context.Context) {
	for pause := rand.N(renewFirst); sleep.For(ctx, pause); pause = renewEvery/2 + rand.N(renewEvery) {
		for tree := range s.allServed() {
			info, err := os.Stat(s.locations(tree))
			if err != nil { // the tree was removed meanwhile, or an attempt to get its locations is due
				continue
			}
			if age := time.Since(info.ModTime()); 0 <= age && age < renewAge {
				continue
			}
			if _, local := s.HasLocal(tree); local {
				continue
			}
			select {
			case <-s.refreshAs(tree, client.AsCopy):
			case <-ctx.Done():
				return
			}
		}
	}
}

// refresh fetches missing, damaged or old locations in the background, unless that was tried
// lately, and gives them to the tree's devices. It returns a channel that is closed when the
// attempt has ended.
func (s *Store) refresh(tree chunk.ID) <-chan struct{} {
	return s.refreshAs(tree, func(ctx context.Context) context.Context { return ctx })
}

// refreshAs does the same as refresh. Its requests have the context that as returns.
func (s *Store) refreshAs(tree chunk.ID, as func(context.Context) context.Context) <-chan struct{} {
	l := s.locator
	l.mu.Lock()
	defer l.mu.Unlock()
	state := l.trees[tree]
	switch {
	case l.ctx.Err() != nil:
		return l.ctx.Done()
	case state == nil:
		state = &locating{}
		state.ctx, state.stop = context.WithCancel(l.ctx)
		l.trees[tree] = state
	case state.busy || time.Now().Before(state.next):
		return state.tried
	}
	state.busy, state.tried = true, make(chan struct{})
	l.work.Go(func() {
		has, err := s.tryRefresh(as(state.ctx), tree)
		if err != nil {
			s.log.Debug("cannot fetch locations", "tree", tree.Short(), "err", err)
		}
		s.finish(tree, state, has)
	})
	return state.tried
}

// finish ends an attempt. If the tree has no locations and is open, finish schedules the next
// attempt.
func (s *Store) finish(tree chunk.ID, state *locating, has bool) {
	l := s.locator
	l.mu.Lock()
	defer l.mu.Unlock()
	state.busy = false
	close(state.tried)
	state.stopRetry()
	switch {
	case state.ctx.Err() != nil:
	case has, len(s.opened(tree)) == 0:
		state.stop()
		delete(l.trees, tree)
	default:
		state.failed++
		pause := locateBackoff.After(state.failed)
		state.next = time.Now().Add(min(pause, repairPause))
		state.retry = time.AfterFunc(pause, func() { s.refresh(tree) })
	}
}

// tryRefresh fetches locations if those on the disk are missing, damaged or old. has reports
// whether valid locations are on the disk afterwards.
func (s *Store) tryRefresh(ctx context.Context, tree chunk.ID) (has bool, err error) {
	extents, file, err := s.openMap(tree)
	if err != nil {
		return false, err
	}
	if err := file.Close(); err != nil {
		return false, err
	}
	path := s.locations(tree)
	if hint, _, err := openLocations(path, tree, extents.Extents); err == nil {
		has = true
		info, err := hint.Stat()
		if err := errors.Join(err, hint.Close()); err != nil {
			return has, err
		}
		if age := time.Since(info.ModTime()); 0 <= age && age < refreshAge { // below 0: the clock was set back
			return has, nil
		}
		// The age is renewed before the attempt, and on the disk, so that a node that restarts does
		// not ask again.
		if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil {
			return has, err
		}
	}
	changed, err := s.updateLocations(ctx, tree, extents.Extents)
	if err == nil {
		err = s.relocate(tree)
	}
	if err != nil {
		return has, err
	}
	if changed {
		s.log.Info("fetched locations", "tree", tree.Short())
		s.prefetchStart(tree) // the previous locations may have named no startup packs
	}
	return true, nil
}

// relocate gives the locations on the disk to the tree's open devices.
func (s *Store) relocate(tree chunk.ID) (err error) {
	for _, o := range s.opened(tree) {
		err = errors.Join(err, o.locate(s.locations(tree)))
	}
	return err
}

// updateLocations fetches the locations of a tree that is on this machine. If they differ from
// those on the disk, it checks them and puts them in their place.
func (s *Store) updateLocations(ctx context.Context, tree chunk.ID, extents int64) (changed bool, err error) {
	select {
	case s.locator.slots <- struct{}{}:
		defer func() { <-s.locator.slots }()
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

// hint is the open file of the locations that a device has.
type hint struct {
	mu     sync.Mutex // guards what follows
	file   *os.File   // nil: the device has no locations
	closed bool
}

// locate gives the device the locations at path, unless it has them.
func (o *OpenTree) locate(path string) error {
	file, locations, err := openLocations(path, o.Tree, o.Header.Extents)
	if err != nil {
		return err
	}
	h := &o.hint
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || isSame(h.file, file) {
		return file.Close()
	}
	o.Device.SetLocations(locations)
	if h.file != nil {
		h.file.Close() // it was only read: no error matters
	}
	h.file = file
	return nil
}

// isSame reports whether file and other are the same file on the disk. file may be nil.
func isSame(file, other *os.File) bool {
	if file == nil {
		return false
	}
	a, failedA := file.Stat()
	b, failedB := other.Stat()
	return failedA == nil && failedB == nil && os.SameFile(a, b)
}

// Close closes the file. It is called after the device's last read.
func (h *hint) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.file != nil {
		return h.file.Close()
	}
	return nil
}
