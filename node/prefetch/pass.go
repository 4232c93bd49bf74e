package prefetch

import (
	"errors"
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/sleep"
)

// task is a wanted startup pack.
type task struct {
	pack      index.Startup
	locations *index.Locations // the locations that name the pack
	load      bool             // load the pack's cached chunks into memory
	planned   bool             // units was set
	units     []unit           // units that are still to be requested, in order
	invalid   atomic.Int32     // units in a row that were missing or invalid
}

// pass is one attempt to fetch the queued packs. It ends at the first failure of the source or the
// cache, or when the queue is empty. After reset, the same value is used for the next attempt.
type pass struct {
	tasks   []*task
	flights sync.WaitGroup
	slots   chan struct{} // one for each unit that is in flight or not stored yet
	// careful means that the last pass failed: units are requested one at a time, until a request
	// ends without a failure of the source or the cache.
	careful bool

	mu     sync.Mutex // guards failed
	failed error      // last failure of the source or the cache; once it is set, nothing more is requested
}

// errNotStored says that the cache did not store a unit's first missing chunk.
var errNotStored = errors.New("the cache did not store the unit")

func (p *pass) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// err returns the failure of the pass, or nil.
func (p *pass) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// reset begins a new pass and returns the failure of the last one, or nil.
func (p *pass) reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.failed
	p.failed, p.careful = nil, err != nil
	return err
}

// request requests one unit of a pack, unless all its chunks are cached. It returns when the unit
// is in flight. In a careful pass it returns when the unit was stored or has failed. It reports
// whether to go on with the pack.
func (s *startup) request(t *task, u unit, p *pass) bool {
	ref, bytes := s.missing(chunk.Unit{Pack: t.pack.Pack, N: u.n}, u.extents)
	if bytes == 0 {
		return true
	}
	for s.blocked() != nil {
		if !sleep.For(s.ctx, shortPause) {
			return false
		}
	}
	select {
	case p.slots <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	if p.err() != nil || t.invalid.Load() >= maxInvalid || !s.spend(bytes) {
		<-p.slots
		return false
	}
	receive, err := s.streamer.Stream(s.ctx, ref, int64(t.pack.Units[u.n]))
	if err != nil || receive == nil {
		<-p.slots
		s.charge(-bytes)
		return err == nil
	}
	expected := s.expect(u.extents)
	p.flights.Go(func() {
		defer func() { <-p.slots }()
		received, err := receive(s.ctx)
		s.account.total.fetched.Add(received)
		if err == nil {
			s.charge(max(received-bytes, 0))
		} else { // a unit that has not arrived uses up neither budget nor credit
			s.charge(-bytes)
			s.account.added.Add(-expected)
			s.credit.wake()
		}
		if err == nil && !s.cache.Has(ref.ID) {
			err = errNotStored
		}
		s.note(t, ref.Unit, p, err)
	})
	if p.careful {
		p.flights.Wait()
		p.careful = p.err() != nil
	}
	return true
}

// missing returns how many bytes of the extents' chunks are not cached, and a reference to the
// first such chunk in unit u.
func (s *startup) missing(u chunk.Unit, extents []int64) (ref chunk.Ref, bytes int64) {
	for _, i := range extents {
		e, err := s.device.Extents().Extent(i)
		if err != nil || s.cache.Has(e.ID) {
			continue
		}
		if bytes == 0 {
			ref = refOf(e, u)
		}
		bytes += int64(e.Length)
	}
	return ref, bytes
}

// expect enters the extents' missing chunks into the account, and returns their bytes.
func (s *startup) expect(extents []int64) (bytes int64) {
	for _, i := range extents {
		e, err := s.device.Extents().Extent(i)
		if err != nil || s.cache.Has(e.ID) {
			continue
		}
		s.account.request(i, e.Length)
		// If the extent is marked already, it counts again: its chunk was fetched, evicted unread,
		// and is now fetched once more.
		bytes += int64(e.Length)
	}
	s.account.added.Add(bytes)
	return bytes
}

// note stores the result of a request for a unit. If the source does not have the unit, or its
// answer is invalid, the pass continues: other units may arrive.
func (s *startup) note(t *task, u chunk.Unit, p *pass, err error) {
	switch {
	case err == nil:
		t.invalid.Store(0)
		return
	case errors.Is(err, chunk.ErrNotFound) || errors.As(err, new(*chunk.InvalidError)):
		t.invalid.Add(1)
	default:
		p.fail(err)
	}
	s.log.Debug("unit of a startup pack not fetched", "unit", u, "err", err)
}
