package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lighter/format/chunk"
	"lighter/format/pack"
)

// flightKey names what is being fetched: a unit, or a chunk whose unit is not
// known.
type flightKey struct {
	unit chunk.Unit
	id   chunk.ID
}

// keyOf names the unit that holds the chunk if it is known and the source gives units, else the
// chunk.
func (u *Units) keyOf(ref chunk.Ref) flightKey {
	if _, ok := u.source.(UnitSource); ok && !ref.Unit.IsZero() {
		return flightKey{unit: ref.Unit}
	}
	return flightKey{id: ref.ID}
}

func (k flightKey) String() string {
	if k.unit.IsZero() {
		return "chunk " + k.id.String()
	}
	return "unit " + k.unit.String()
}

// flight is one request for a unit, and its way into the cache.
type flight struct {
	key     flightKey
	first   *Share    // that asked
	want    chunk.Ref // what it wants of it
	place   place
	cancel  context.CancelFunc
	waiters int           // guarded by Units.mu; at zero before done the flight is cancelled
	done    chan struct{} // closed when batch or err is set
	stored  chan struct{} // closed when nothing more happens
	batch   Batch
	err     error
	bytes   int64 // encoded, of the unit

	crossing crossing
}

// join returns the flight of that key, starting one if there is none, unless the
// chunk is in the cache by now: then it returns nil. Whoever joins says to the gate
// that he wants it.
func (u *Units) join(s *Share, key flightKey, want chunk.Ref) *flight {
	f, _ := u.joinSized(s, key, want, typicalUnit)
	return f
}

// joinSized is join of a unit of about size bytes, and says whether it started the
// flight.
func (u *Units) joinSized(s *Share, key flightKey, want chunk.Ref, size int64) (_ *flight, started bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	started = u.flights[key] == nil
	if started && u.cache.Has(want.ID) {
		return nil, false
	}
	return u.joinLocked(s, key, want, size), started
}

// isOnItsWay tells whether a flight of that key would be joined, not started.
func (u *Units) isOnItsWay(key flightKey) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.flights[key] != nil
}

// joinOrStart is join, whatever the cache has.
func (u *Units) joinOrStart(s *Share, key flightKey, want chunk.Ref) *flight {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.joinLocked(s, key, want, typicalUnit)
}

func (u *Units) joinLocked(s *Share, key flightKey, want chunk.Ref, size int64) *flight {
	if f := u.flights[key]; f != nil {
		f.waiters++
		return f
	}
	// Detached from the caller that happens to be first: others may join.
	// leave cancels it when the last of them has gone.
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{key: key, first: s, want: want, place: newPlace(), cancel: cancel, waiters: 1, done: make(chan struct{}), stored: make(chan struct{})}
	u.flights[key] = f
	u.link.expect(&f.crossing, size)
	u.idle.Add(1)
	go func() {
		defer u.idle.Done()
		defer cancel()
		u.fly(ctx, f)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.forget(f)
		close(f.stored)
	}()
	return f
}

// leave ends one caller's interest. A flight that nobody waits for any more
// and that has not arrived is cancelled, and no longer found by others.
func (u *Units) leave(f *flight) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f.waiters--
	select {
	case <-f.done:
		return
	default:
	}
	if f.waiters == 0 {
		f.cancel()
		u.forget(f)
	}
}

// forget makes sure that nobody joins the flight any more. The caller holds mu.
func (u *Units) forget(f *flight) {
	if u.flights[f.key] == f {
		delete(u.flights, f.key)
	}
}

// fly brings the unit, lets the waiters have it, and stores its chunks. A flight
// that failed is forgotten first: whoever tries again needs another.
func (u *Units) fly(ctx context.Context, f *flight) {
	f.batch, f.err = u.bring(ctx, f)
	u.link.end(&f.crossing)
	if f.err != nil {
		u.mu.Lock()
		u.forget(f)
		u.mu.Unlock()
	}
	close(f.done)
	if f.err != nil {
		return
	}
	size := f.batch.Memory()
	defer u.link.wake()
	defer u.unstored.Add(-size)
	if u.unstored.Add(size) > maxUnstored {
		u.dropped.Add(1)
		return
	}
	u.store <- struct{}{}
	defer func() { <-u.store }()
	for i := range f.batch.Len() {
		ref := f.batch.Ref(i)
		if u.cache.Has(ref.ID) {
			continue
		}
		plain, err := f.batch.Chunk(i)
		if err != nil {
			u.invalid.Add(1)
			continue
		}
		u.cache.Put(ref, plain)
	}
}

// bring fetches and decodes a unit, when it is its turn.
func (u *Units) bring(ctx context.Context, f *flight) (batch Batch, err error) {
	if err := u.gate.enter(ctx, &f.place); err != nil {
		return nil, err
	}
	defer u.gate.leave(&f.place)
	u.requests.Add(1)
	f.crossing.began = time.Now()
	var from string
	take := func(a Answer) (err error) {
		from = a.Origin
		batch, err = u.take(ctx, f, a)
		return err
	}
	if units, ok := u.source.(UnitSource); ok && !f.key.unit.IsZero() {
		err = units.FetchUnit(ctx, f.key.unit, take)
	} else {
		err = u.source.Fetch(ctx, f.want, take)
	}
	if err == nil {
		u.rests.Store(0)
		u.mu.Lock()
		f.first.received[from] += f.bytes
		u.mu.Unlock()
	} else if !notThere(err) && ctx.Err() == nil {
		u.rests.Store(time.Now().Add(maxPause).UnixNano())
	}
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", f.key, err)
	}
	return batch, nil
}

// take reads and decodes a unit, in which the chunk must be for which it was
// asked: one that is not is no better than none, and another origin may have
// another.
func (u *Units) take(ctx context.Context, f *flight, a Answer) (Batch, error) {
	encoded, err := u.receive(ctx, f, a.Length, u.watch(f, a))
	if err != nil {
		return nil, err
	}
	u.fetched.Add(int64(len(encoded)))
	f.bytes = int64(len(encoded))
	batch, err := u.decodeAnswer(a, encoded, f.want)
	if err != nil {
		u.invalid.Add(1)
		return nil, &chunk.InvalidError{What: f.key.String(), Err: err}
	}
	return batch, nil
}

// watch has the link know of what arrives.
func (u *Units) watch(f *flight, a Answer) io.Reader {
	trip, reused := a.RoundTrip, a.Reused
	if trip == 0 {
		trip, reused = time.Since(f.crossing.began), true
	}
	connections := u.link.answer(&f.crossing, min(a.Length, pack.MaxStored), trip, reused)
	if c, ok := u.source.(Connector); ok && connections > 0 {
		c.Connect(connections)
	}
	return readerFunc(func(b []byte) (int, error) {
		n, err := a.Body.Read(b)
		u.link.arrive(&f.crossing, int64(n))
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// decodeAnswer decodes an answer that shall hold a chunk, as many at a time as there
// are processors: what an answer grows to is the origin's to say.
func (u *Units) decodeAnswer(a Answer, encoded []byte, want chunk.Ref) (batch Batch, err error) {
	u.decode <- struct{}{}
	defer func() { <-u.decode }()
	if a.Decode == nil {
		batch = single{want, encoded}
	} else if batch, err = a.Decode(encoded); err != nil {
		return nil, err
	}
	_, err = batch.Lookup(want.ID)
	return batch, err
}

var errTooLong = errors.New("it is longer than any unit")

// receive reads an answer of at most pack.MaxStored bytes, once there is room for
// it.
func (u *Units) receive(ctx context.Context, f *flight, length int64, body io.Reader) ([]byte, error) {
	room := length
	if room < 0 {
		room = pack.MaxStored
	}
	var b []byte
	err := errTooLong
	if room <= pack.MaxStored {
		if err := u.gate.grow(ctx, &f.place, room); err != nil {
			return nil, err
		}
		if length < 0 {
			b, err = io.ReadAll(io.LimitReader(body, pack.MaxStored+1))
		} else {
			b = make([]byte, length)
			_, err = io.ReadFull(body, b)
		}
	}
	if err == nil && len(b) > pack.MaxStored {
		err = errTooLong
	}
	if err == errTooLong {
		u.invalid.Add(1)
		return nil, &chunk.InvalidError{What: f.key.String(), Err: err}
	}
	return b, err
}
