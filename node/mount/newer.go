package mount

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/index"
)

const (
	// refreshAge is how old locations are before newer ones are asked for. One attempt
	// makes them young, well or not: while there are some, nobody needs others soon.
	refreshAge = time.Minute
	// locateTogether is for how many trees locations are fetched at a time, after the
	// trees came.
	locateTogether = 4
)

// newer fetches locations of trees that are here already, because the hub may have
// better ones.
type newer struct {
	locks locks         // held while a tree's locations are fetched, so that nothing is fetched twice at a time
	turns chan struct{} // holds a value for each tree whose locations are fetched
	ctx   context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu    sync.Mutex // guards what follows
	tried map[chunk.ID]chan struct{}
	ended bool
}

func newNewer() *newer {
	n := &newer{locks: newLocks(), turns: make(chan struct{}, locateTogether), tried: map[chunk.ID]chan struct{}{}}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// refresh has newer locations of a tree fetched in the background, if there are any and
// that was not tried lately, and given to its devices. It does not wait, and returns
// what is closed when that has ended, well or not.
func (t *Trees) refresh(tree chunk.ID) <-chan struct{} {
	n := t.newer
	n.mu.Lock()
	defer n.mu.Unlock()
	if tried := n.tried[tree]; tried != nil {
		return tried
	}
	if n.ended {
		return notNow
	}
	tried := make(chan struct{})
	n.tried[tree] = tried
	n.work.Go(func() {
		log := t.log.With("tree", tree.Short())
		if changed, err := t.refreshOnce(tree); err != nil {
			log.Debug("it is not known whether there are newer locations", "cause", err)
		} else if changed {
			log.Info("newer locations have come")
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.tried, tree)
		close(tried)
	})
	return tried
}

// refreshForStart is refresh for a start that is near.
func (t *Trees) refreshForStart(tree chunk.ID) {
	if _, local := t.HasLocal(tree); !local { // a local device asks nobody
		t.refresh(tree)
	}
}

func (t *Trees) refreshOnce(tree chunk.ID) (changed bool, err error) {
	path := t.locations(tree)
	if old, err := isOld(path); err != nil || !old {
		return false, err
	}
	// Before it is tried, and on the disk: a node that starts again does not ask again.
	if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil {
		return false, err
	}
	file, err := os.Open(filepath.Join(t.dir(tree), "map"))
	if err != nil {
		return false, err
	}
	extents, err := index.OpenMap(file, tree, index.NewPages(1))
	if err = errors.Join(err, file.Close()); err != nil {
		return false, err
	}
	if changed, err = t.update(t.newer.ctx, tree, extents.Extents); !changed {
		return false, err
	}
	return true, t.relocate(tree)
}

// relocate gives the locations that are on the disk to whoever has others. Where they
// are the first that say what a start needs, that begins to come.
func (t *Trees) relocate(tree chunk.ID) (err error) {
	for _, m := range t.opened(tree) {
		err = errors.Join(err, m.locating.reopen())
	}
	t.begin(tree)
	return err
}

// opened returns the devices of a tree that are known.
func (t *Trees) opened(tree chunk.ID) (list []*served) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.served[tree]; m != nil {
		list = append(list, m)
	}
	for _, e := range t.early {
		if e.tree == tree {
			list = append(list, e.m)
		}
	}
	return list
}

// isOld tells whether it is a while since locations came or others were asked for.
func isOld(path string) (bool, error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	age := time.Since(info.ModTime())
	return age < 0 || age >= refreshAge, nil // the clock may have been set back
}

// update fetches the locations of a tree that is here, verifies them as far as they can
// be, and puts them on the disk, if they are others than those that are there.
func (t *Trees) update(ctx context.Context, tree chunk.ID, extents int64) (changed bool, err error) {
	unlock, err := t.newer.locks.lockOrCancel(ctx, tree)
	if err != nil {
		return false, err
	}
	defer unlock()
	select {
	case t.newer.turns <- struct{}{}:
		defer func() { <-t.newer.turns }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	path := t.locations(tree)
	fresh := path + ".new"
	if err := removeIfThere(fresh); err != nil { // of a crash
		return false, err
	}
	defer func() {
		if !changed {
			err = errors.Join(err, removeIfThere(fresh))
		}
	}()
	have, err := sumOf(path)
	if err != nil {
		have = chunk.ID{} // missing, or damaged: anything is better
	}
	known := func() (int64, error) { return extents, nil }
	if err := t.fetchLocations(ctx, tree, have, fresh, known); err != nil {
		return false, err
	}
	came, err := sumOf(fresh)
	if errors.Is(err, os.ErrNotExist) || err == nil && came == have {
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

// end has nothing more fetched, and waits until nothing is.
func (n *newer) end() {
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.stop()
	n.work.Wait()
}
