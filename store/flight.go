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

// keyOf names what the hint says that holds the chunk.
func keyOf(ref chunk.Ref) flightKey {
	if ref.Unit.IsZero() {
		return flightKey{id: ref.ID}
	}
	return flightKey{unit: ref.Unit}
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
	first   *Share   // that asked
	want    chunk.ID // what it wants of it
	place   place
	cancel  context.CancelFunc
	waiters int           // guarded by Units.mu; at zero before done the flight is cancelled
	done    chan struct{} // closed when unit or err is set
	stored  chan struct{} // closed when nothing more happens
	unit    *pack.Unit
	err     error
	bytes   int64 // encoded, of the unit

	crossing crossing
}

// join returns the flight of that key, starting one if there is none, unless the
// chunk is in the cache by now: then it returns nil. Whoever joins says to the gate
// that he wants it.
func (u *Units) join(s *Share, key flightKey, want chunk.ID) *flight {
	f, _ := u.joinSized(s, key, want, typicalUnit)
	return f
}

// joinSized is join of a unit of about size bytes, and says whether it started the
// flight.
func (u *Units) joinSized(s *Share, key flightKey, want chunk.ID, size int64) (_ *flight, started bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	started = u.flights[key] == nil
	if started && u.cache.Has(want) {
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
func (u *Units) joinOrStart(s *Share, key flightKey, want chunk.ID) *flight {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.joinLocked(s, key, want, typicalUnit)
}

func (u *Units) joinLocked(s *Share, key flightKey, want chunk.ID, size int64) *flight {
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
	f.unit, f.err = u.bring(ctx, f)
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
	size := f.unit.Memory()
	defer u.link.wake()
	defer u.unstored.Add(-size)
	if u.unstored.Add(size) > maxUnstored {
		u.dropped.Add(1)
		return
	}
	u.store <- struct{}{}
	defer func() { <-u.store }()
	for i := range f.unit.Len() {
		ref := f.unit.Ref(i)
		if u.cache.Has(ref.ID) {
			continue
		}
		plain, err := f.unit.Chunk(i)
		if err != nil {
			u.invalid.Add(1)
			continue
		}
		u.cache.Put(ref, plain)
	}
}

// bring fetches and decodes a unit, when it is its turn.
func (u *Units) bring(ctx context.Context, f *flight) (unit *pack.Unit, err error) {
	if err := u.gate.enter(ctx, &f.place); err != nil {
		return nil, err
	}
	defer u.gate.leave(&f.place)
	u.requests.Add(1)
	f.crossing.began = time.Now()
	var from string
	take := func(length int64, body io.Reader) (err error) {
		unit, err = u.take(ctx, f, length, body)
		return err
	}
	if f.key.unit.IsZero() {
		from, err = u.source.Chunk(ctx, f.key.id, take)
	} else {
		from, err = u.source.Unit(ctx, f.key.unit, take)
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
	return unit, nil
}

// take reads and decodes a unit, in which the chunk must be for which it was
// asked: one that is not is no better than none, and another origin may have
// another.
func (u *Units) take(ctx context.Context, f *flight, length int64, body io.Reader) (*pack.Unit, error) {
	encoded, err := u.receive(ctx, f, length, u.watch(f, length, body))
	if err != nil {
		return nil, err
	}
	u.fetched.Add(int64(len(encoded)))
	f.bytes = int64(len(encoded))
	unit, err := u.decodeUnit(encoded, f.want)
	if err != nil {
		u.invalid.Add(1)
		return nil, &chunk.InvalidError{What: f.key.String(), Err: err}
	}
	return unit, nil
}

// watch has the link know of what arrives.
func (u *Units) watch(f *flight, length int64, body io.Reader) io.Reader {
	trip, reused := time.Since(f.crossing.began), true
	if known, ok := body.(interface{ RoundTrip() (time.Duration, bool) }); ok {
		trip, reused = known.RoundTrip()
	}
	connections := u.link.answer(&f.crossing, min(length, pack.MaxStored), trip, reused)
	if s, ok := u.source.(interface{ Ready(connections int) }); ok && connections > 0 {
		s.Ready(connections)
	}
	return readerFunc(func(b []byte) (int, error) {
		n, err := body.Read(b)
		u.link.arrive(&f.crossing, int64(n))
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// decodeUnit decodes a unit that shall hold a chunk, as many at a time as there
// are processors: what a unit grows to is the origin's to say.
func (u *Units) decodeUnit(encoded []byte, want chunk.ID) (*pack.Unit, error) {
	u.decode <- struct{}{}
	defer func() { <-u.decode }()
	unit, err := pack.DecodeUnit(encoded)
	if err == nil {
		_, err = unit.Lookup(want)
	}
	return unit, err
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
