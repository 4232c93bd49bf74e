package mount

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
)

const (
	// locateFirst and locateRarest bound the pauses between attempts to fetch the
	// locations of one tree, which double. A fault that needs them ends a pause after
	// mendPause at most.
	locateFirst  = time.Second
	locateRarest = 5 * time.Minute
)

// locating holds the locations that a tree's device has, and fetches them where they
// are missing, because they did not come with the index, or damaged on the disk: in
// the background, since they are a hint, until they are there or the tree is closed.
// Newer ones come by Trees.refresh.
type locating struct {
	trees   *Trees
	tree    chunk.ID
	extents int64
	device  *device.Device
	ctx     context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup

	mu     sync.Mutex    // guards what follows
	file   *os.File      // nil: the device has none
	tried  chan struct{} // closed when the attempt ends that is on its way; nil: none is
	failed int           // attempts in a row
	next   time.Time     // before it nobody's need is a reason for another
	again  *time.Timer   // begins another although nobody needs it
	ended  bool
}

// locate returns the locating of a device that has the locations in file, or none if
// it is nil.
func (t *Trees) locate(tree chunk.ID, extents int64, of *device.Device, file *os.File) *locating {
	l := &locating{trees: t, tree: tree, extents: extents, device: of, file: file}
	l.ctx, l.stop = context.WithCancel(context.Background())
	of.LocateWith(l)
	return l
}

// begin fetches locations if there are none, and takes those that others have fetched
// since it opened its own. The tree is known by now: of later ones it is told.
func (l *locating) begin() {
	l.mu.Lock()
	file := l.file
	l.mu.Unlock()
	if file == nil {
		l.Locate()
	} else if !isAt(file, l.trees.locations(l.tree)) {
		l.reopen()
	}
}

// isAt tells whether an open file has that path, as far as can be seen.
func isAt(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(path)
	return err != nil || os.SameFile(mine, there)
}

// Relocate has newer locations fetched, unless that was tried lately.
func (l *locating) Relocate() <-chan struct{} { return l.trees.refresh(l.tree) }

// notNow is closed: who waits for it waits for nothing.
var notNow = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Locate has locations fetched, unless that was tried a moment ago.
func (l *locating) Locate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tried != nil:
		return l.tried
	case l.ended || time.Now().Before(l.next):
		return notNow
	}
	l.quiet()
	tried := make(chan struct{})
	l.tried = tried
	l.work.Go(func() {
		l.learn(l.fetch())
		close(tried)
	})
	return tried
}

// quiet calls off the attempt that is to come; mu is held.
func (l *locating) quiet() {
	if l.again != nil {
		l.again.Stop()
		l.again = nil
	}
}

// learn says what became of an attempt, and when the next one will be.
func (l *locating) learn(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = nil
	log := l.trees.log.With("tree", l.tree.Short())
	switch {
	case l.ended:
	case err == nil:
		l.failed, l.next = 0, time.Now().Add(mendPause)
		log.Info("the locations have come")
	default:
		pause := min(locateFirst<<min(l.failed, 10), locateRarest)
		pause = pause/2 + rand.N(pause/2) // nodes that failed together do not come back together
		l.failed++
		l.next = time.Now().Add(min(pause, mendPause))
		l.again = time.AfterFunc(pause, func() { l.Locate() })
		log.Debug("the locations do not come", "again", pause, "cause", err)
	}
}

// fetch brings locations to the disk and to the device.
func (l *locating) fetch() error {
	if _, err := l.trees.update(l.ctx, l.tree, l.extents); err != nil {
		return err
	}
	return l.reopen()
}

// reopen gives the device the locations that are on the disk.
func (l *locating) reopen() error {
	file, locations, err := openLocations(l.trees.locations(l.tree), l.tree, l.extents)
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
		l.file.Close() // only read: nothing to lose
	}
	l.file = file
	return nil
}

// end has nothing more fetched, and waits until nothing is.
func (l *locating) end() {
	l.mu.Lock()
	l.ended = true
	l.quiet()
	l.mu.Unlock()
	l.stop()
	l.work.Wait()
}

// Close ends what is on its way, and closes the file. It is called when no fault comes
// any more.
func (l *locating) Close() error {
	l.end()
	if l.file != nil {
		l.file.Close() // only read: nothing to lose
	}
	return nil
}

func openLocations(path string, tree chunk.ID, extents int64) (*os.File, *index.Locations, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	locations, err := index.OpenLocations(file, info.Size(), tree, extents)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, locations, nil
}
