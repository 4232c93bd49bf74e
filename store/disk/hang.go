package disk

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A disk that hangs answers neither with bytes nor with an error. Nothing ends an operation
// that waits for it, so callers leave: the operation stays behind, with a goroutine, a
// thread and a buffer of its own, until the disk answers.
const (
	// readPatience is how long a reader waits: then a hub is asked.
	readPatience = time.Second
	// writePatience is how long a chunk waits that is stored. No reader waits for that, and it
	// may take a while to make room.
	writePatience = 10 * time.Second
	// closePatience is how long Close waits.
	closePatience = 10 * time.Second
	// maxReads and maxWrites bound the operations that wait for the disk at a time, with those
	// that were left behind.
	maxReads  = 32
	maxWrites = 4
	// fewLeft is how many reads are left behind when the cache is bypassed. One may be a bad
	// sector.
	fewLeft = 4
)

var errHangs = errors.New("the disk does not answer")

// guard lets callers leave operations that the disk does not answer.
type guard struct {
	patience time.Duration
	slots    chan struct{} // one for each operation

	mu    sync.Mutex // guards changes of left, here and in segments
	left  atomic.Int64
	since atomic.Int64 // when the first of these was left; Unix nanoseconds
}

func newGuard(operations int, patience time.Duration) *guard {
	return &guard{patience: patience, slots: make(chan struct{}, operations)}
}

// do runs op and returns nil, or errHangs when the caller's patience is at its end: then op
// has not begun, or goes on, and counts in left and in also until it ends. So op owns what it
// uses. What op found is the caller's if do returns nil.
func (g *guard) do(op func(), also *atomic.Int64) error {
	timer := time.NewTimer(g.patience)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
	case <-timer.C:
		return errHangs
	}
	done, gone := make(chan struct{}), false
	go func() {
		op()
		<-g.slots
		g.mu.Lock()
		defer g.mu.Unlock()
		close(done)
		if gone {
			g.left.Add(-1)
			also.Add(-1)
		}
	}()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-done: // just now
		return nil
	default:
	}
	gone = true
	also.Add(1)
	if g.left.Add(1) == 1 {
		g.since.Store(time.Now().UnixNano())
	}
	return errHangs
}

// hangsSince returns since when at least n operations have been left behind, if they have.
func (g *guard) hangsSince(n int64) (since time.Time) {
	if g.left.Load() >= n {
		since = time.Unix(0, g.since.Load())
	}
	return since
}
