package store

import (
	"context"
	"sync"

	"lighter/format/chunk"
)

// flightKey names what a request asks for: a unit, or a chunk in any unit that holds it.
type flightKey struct {
	unit chunk.Unit
	id   chunk.ID
}

func (k flightKey) String() string {
	if k.unit.IsZero() {
		return "chunk " + k.id.String()
	}
	return "unit " + k.unit.String()
}

// wanted is what one caller asks for.
type wanted struct {
	key   flightKey
	route *route // to the server that is asked
	ref   chunk.Ref
	share *Share
	size  int64 // expected bytes of the answer
	// uncached means that a read of the cache has failed. The chunk is then fetched even if the
	// cache reports that it has it.
	uncached bool
}

// flight is one request, and the storing of its answer.
type flight struct {
	wanted   // what the first caller asks for
	ticket   ticket
	transfer transfer
	cancel   context.CancelFunc
	waiters  int           // guarded by flights.mu; if it falls to 0 before done, the flight is cancelled
	done     chan struct{} // closed when batch or err is set
	stored   chan struct{} // closed when the answer is stored, or will not be
	batch    Batch
	err      error
	received int64 // encoded bytes of the answer
}

// flights let callers that want the same unit share one request. It is safe for concurrent use.
type flights struct {
	cache   Cache
	wake    func() // makes streams check again whether they may start a request
	fetch   func(ctx context.Context, f *flight) (Batch, error)
	storage *storage

	mu      sync.Mutex // guards byKey
	byKey   map[flightKey]*flight
	running sync.WaitGroup
}

// join returns the flight for what a caller wants, and reports whether join started it. It returns
// nil if there was no flight and the chunk is cached by now, unless w.uncached is set. A caller
// calls leave once for each flight that it has joined. The gate admits the flight only after a call
// of gate.want.
func (fs *flights) join(w wanted) (f *flight, started bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byKey[w.key]; f != nil {
		f.waiters++
		return f, false
	}
	if !w.uncached && fs.cache.Has(w.ref.ID) {
		return nil, false
	}
	// Other callers may join, so the request does not end with its first caller. leave cancels it
	// when the last caller has left.
	ctx, cancel := context.WithCancel(context.Background())
	f = &flight{wanted: w, ticket: newTicket(), cancel: cancel, waiters: 1,
		done: make(chan struct{}), stored: make(chan struct{})}
	fs.byKey[w.key] = f
	f.route.link.begin(&f.transfer, w.size)
	fs.running.Go(func() {
		defer cancel()
		fs.run(ctx, f)
		fs.forget(f)
		close(f.stored)
	})
	return f, true
}

// run fetches the answer, passes it to the readers, and stores it.
func (fs *flights) run(ctx context.Context, f *flight) {
	f.batch, f.err = fs.fetch(ctx, f)
	f.route.link.end(&f.transfer)
	if f.err != nil {
		fs.forget(f) // before done: a caller that tries again needs another flight
	}
	close(f.done)
	if f.err == nil {
		fs.storage.put(f.batch)
		fs.wake() // streams wait until answers are stored
	}
}

// has reports whether join would find a flight.
func (fs *flights) has(key flightKey) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.byKey[key] != nil
}

// leave is called when a caller no longer waits. If it was the last one and the answer has not
// arrived, the flight is cancelled, and can no longer be joined.
func (fs *flights) leave(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.waiters--
	select {
	case <-f.done:
		return
	default:
	}
	if f.waiters == 0 {
		f.cancel()
		fs.remove(f)
	}
}

// forget makes sure that no caller joins the flight any more.
func (fs *flights) forget(f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.remove(f)
}

// remove does what forget does, for a caller that holds mu.
func (fs *flights) remove(f *flight) {
	if fs.byKey[f.key] == f {
		delete(fs.byKey, f.key)
	}
}
