package device

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

const (
	// streamLies is how many units in a row may not be what they should, or not be
	// there, before a startup pack is given up.
	streamLies = 8
	// shortPause is how soon it is looked again whether memory or the disk is short.
	shortPause = time.Second
)

// task is a pack that is wanted.
type task struct {
	pack      index.Startup
	locations *index.Locations // that name it
	load      bool             // what is here of it, too: into memory
	planned   bool             // its units are known
	units     []prefetch.Unit  // that are left; the first is next
	lies      atomic.Int32     // units in a row that were not what they should be
}

// pass is what was fetched since the stream began, or went on.
type pass struct {
	tasks   []*task
	flights sync.WaitGroup
	room    chan struct{} // one for each unit in flight
	careful bool          // one unit at a time: the last pass has failed

	mu     sync.Mutex // guards failed
	failed error      // the source, or the cache: not to be tried now
}

var errNotKept = errors.New("the cache does not take it")

// fail notes that nothing more is to be asked for.
func (p *pass) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
}

// why says why nothing more is to be asked for at all.
func (p *pass) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// reset ends the pass, and says why if it did not come to its end.
func (p *pass) reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.failed
	p.failed, p.careful = nil, err != nil
	return err
}

// fetch asks for one unit of a pack when it is its turn, unless it is here, and tells
// whether to go on with the pack.
func (s *stream) fetch(t *task, unit prefetch.Unit, p *pass) bool {
	u := chunk.Unit{Pack: t.pack.Pack, N: unit.N}
	ref, plain := s.device.missing(u, unit.Extents)
	if plain == 0 {
		return true
	}
	for s.device.ahead.options.Short() != nil {
		if !wait(s.ctx, shortPause) {
			return false
		}
	}
	select {
	case p.room <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	if p.why() != nil || t.lies.Load() >= streamLies || !s.take(plain) {
		<-p.room
		return false
	}
	came, err := s.device.chunks.Stream(s.ctx, ref, int64(t.pack.Units[unit.N]))
	if err != nil || came == nil {
		<-p.room
		s.take(-plain)
		return err == nil
	}
	expected := s.device.expect(unit.Extents)
	p.flights.Go(func() {
		defer func() { <-p.room }()
		n, err := came(s.ctx)
		s.device.ahead.streamed.fetched.Add(n)
		if err == nil {
			s.take(max(n-plain, 0))
		} else { // what does not come is not counted
			s.take(-plain)
			s.credit.zone.brought.Add(-expected)
			s.credit.free()
		}
		if err == nil && !s.device.chunks.Has(ref.ID) {
			err = errNotKept
		}
		s.note(t, u, p, err)
	})
	if p.careful {
		p.flights.Wait()
		p.careful = p.why() != nil
	}
	return true
}

// note notes how a unit came.
func (s *stream) note(t *task, u chunk.Unit, p *pass, err error) {
	switch {
	case err == nil:
		t.lies.Store(0)
		return
	case errors.Is(err, chunk.ErrNotFound) || errors.As(err, new(*chunk.InvalidError)):
		t.lies.Add(1)
	default:
		p.fail(err)
	}
	s.device.log.Debug("a startup pack's unit does not come", "unit", u, "cause", err)
}

// wait tells whether so much time has gone by before ctx was done.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
