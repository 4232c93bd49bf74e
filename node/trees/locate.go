package trees

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/node/prefetch"
)

// locating holds the locations of an open tree's device. If they are missing or damaged, it
// fetches them in the background until they arrive or the tree is closed. Newer ones come by
// Store.refresh.
type locating struct {
	store   *Store
	tree    chunk.ID
	extents int64
	device  *prefetch.Device
	ctx     context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex    // guards what follows
	file   *os.File      // nil: the device has no locations
	tried  chan struct{} // closed when the attempt in flight ends; nil: none is
	failed int           // attempts in a row
	next   time.Time     // before it no fault starts another attempt
	again  *time.Timer   // starts the next attempt
	ended  bool
}

// locate returns the locating of a device that has the locations in file, which may be nil.
func (s *Store) locate(tree chunk.ID, extents int64, of *prefetch.Device, file *os.File) *locating {
	l := &locating{store: s, tree: tree, extents: extents, device: of, file: file}
	l.ctx, l.stop = context.WithCancel(context.Background())
	of.LocateWith(l)
	return l
}

// begin fetches locations if there are none, and reopens the file if it was replaced since it was
// opened. It is called when relocate can find the tree, so no later locations are missed.
func (l *locating) begin() {
	l.mu.Lock()
	file := l.file
	l.mu.Unlock()
	if file == nil {
		l.Locate()
	} else if !isAt(file, l.store.locations(l.tree)) {
		l.reopen()
	}
}

// isAt reports whether an open file has that path. It reports true if that cannot be found out.
func isAt(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return true
	}
	current, err := os.Stat(path)
	return err != nil || os.SameFile(mine, current)
}

// Relocate fetches newer locations in the background, unless that was tried lately. The channel
// is closed when the attempt has ended.
func (l *locating) Relocate() <-chan struct{} { return l.store.refresh(l.tree) }

// closed is returned where there is nothing to wait for.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Locate fetches locations in the background, unless that was tried a moment ago. The channel is
// closed when the attempt has ended.
func (l *locating) Locate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tried != nil:
		return l.tried
	case l.ended || time.Now().Before(l.next):
		return closed
	}
	l.stopTimer()
	tried := make(chan struct{})
	l.tried = tried
	l.work.Go(func() {
		l.finish(l.fetch())
		close(tried)
	})
	return tried
}

// stopTimer cancels the next attempt; mu is held.
func (l *locating) stopTimer() {
	if l.again != nil {
		l.again.Stop()
		l.again = nil
	}
}

// finish ends an attempt, and schedules the next one if it failed.
func (l *locating) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = nil
	log := l.store.log.With("tree", l.tree.Short())
	switch {
	case l.ended:
	case err == nil:
		l.failed, l.next = 0, time.Now().Add(repairPause)
		log.Info("fetched locations")
	default:
		pause := min(locateFirst<<min(l.failed, 10), locateRarest)
		pause = pause/2 + rand.N(pause/2) // jitter: many nodes may have failed at the same time
		l.failed++
		l.next = time.Now().Add(min(pause, repairPause))
		l.again = time.AfterFunc(pause, func() { l.Locate() })
		log.Debug("cannot fetch locations", "retry", pause, "err", err)
	}
}

// fetch fetches locations to the disk and gives them to the device.
func (l *locating) fetch() error {
	if _, err := l.store.updateLocations(l.ctx, l.tree, l.extents); err != nil {
		return err
	}
	return l.reopen()
}

// reopen gives the device the locations on the disk.
func (l *locating) reopen() error {
	file, locations, err := openLocations(l.store.locations(l.tree), l.tree, l.extents)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return file.Close()
	}
	l.device.SetLocations(locations)
	if l.file != nil {
		l.file.Close() // it was only read: no error matters
	}
	l.file = file
	return nil
}

// end ends all fetches, and waits until none is in flight.
func (l *locating) end() {
	l.mu.Lock()
	l.ended = true
	l.stopTimer()
	l.mu.Unlock()
	l.stop()
	l.work.Wait()
}

// Close ends all fetches and closes the file. It is called after the device's last read.
func (l *locating) Close() error {
	l.end()
	if l.file != nil {
		l.file.Close() // it was only read: no error matters
	}
	return nil
}
