package disk

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

var errHangs = errors.New("the disk does not answer")

// breaker is a circuit breaker around the disk's operations of one kind, reads or writes. It is
// open for a pause after maxBad operations in a row have failed, and while at least maxHung hang.
//
// A hanging disk answers neither with bytes nor with an error, and nothing ends an operation that
// waits for it. So callers abandon it: it goes on, with a goroutine, a thread and a buffer of its
// own, until the disk answers. When the disk answers abandoned operations, the breaker closes.
//
// It is safe for concurrent use.
type breaker struct {
	patience time.Duration // after which a caller abandons an operation
	slots    chan struct{} // one for each operation
	maxHung  int64         // abandoned operations that open the breaker
	maxBad   int64         // failures in a row that open it

	failures atomic.Int64 // in a row
	until    atomic.Int64 // when a breaker that failures opened closes, in Unix nanoseconds; 0: they have not opened it

	mu        sync.Mutex // guards changes of abandoned, here and in segments
	abandoned atomic.Int64
	since     atomic.Int64 // when the first of the abandoned operations was abandoned, in Unix nanoseconds
}

func newReads() *breaker {
	return &breaker{patience: readPatience, slots: make(chan struct{}, maxReads), maxHung: hungReads, maxBad: badReads}
}

func newWrites() *breaker {
	return &breaker{patience: writePatience, slots: make(chan struct{}, maxWrites), maxHung: hungWrites, maxBad: 1}
}

// isOpen reports whether the disk must not be used.
func (b *breaker) isOpen() bool {
	return b.abandoned.Load() >= b.maxHung || b.until.Load() != 0 && !b.openUntil().IsZero()
}

// openUntil returns when a breaker that failures have opened will close, or zero if failures have
// not opened it.
func (b *breaker) openUntil() (until time.Time) {
	ns := b.until.Load()
	if until = time.Unix(0, ns); until.After(time.Now()) {
		return until
	}
	b.until.CompareAndSwap(ns, 0)
	return time.Time{}
}

// failed counts an operation that failed or was abandoned.
func (b *breaker) failed() {
	if b.failures.Add(1)%b.maxBad == 0 {
		b.until.Store(time.Now().Add(pause).UnixNano())
	}
}

// succeeded notes that the disk works.
func (b *breaker) succeeded() {
	if b.failures.Load() != 0 { // only if needed: a write makes the processors of other readers wait
		b.failures.Store(0)
	}
}

// do runs op and returns nil, or errHangs if that takes longer than the patience. In this case op
// has not begun, or goes on and counts as abandoned, here and in also, until it ends. So op must
// own everything that it uses, and its result is the caller's only if do returns nil.
func (b *breaker) do(op func(), also *atomic.Int64) error {
	timer := time.NewTimer(b.patience)
	defer timer.Stop()
	select {
	case b.slots <- struct{}{}:
	case <-timer.C:
		return errHangs
	}
	done, abandoned := make(chan struct{}), false
	go func() {
		op()
		<-b.slots
		b.mu.Lock()
		defer b.mu.Unlock()
		close(done)
		if abandoned {
			b.abandoned.Add(-1)
			also.Add(-1)
		}
	}()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-done: // op has ended just now
		return nil
	default:
	}
	abandoned = true
	also.Add(1)
	if b.abandoned.Add(1) == 1 {
		b.since.Store(time.Now().UnixNano())
	}
	return errHangs
}

// hangsSince returns since when hanging operations have kept the breaker open, or zero.
func (b *breaker) hangsSince() (since time.Time) {
	if b.abandoned.Load() >= b.maxHung {
		since = time.Unix(0, b.since.Load())
	}
	return since
}
