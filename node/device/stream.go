package device

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/prefetch"
)

const (
	// streamUnits bounds the units of one stream that were asked for and are not
	// stored yet. How many are worth asking for the link says.
	streamUnits = 64
	// streamTries is how many times a stream goes on after the source has failed or
	// the cache has not taken what came, streamPause and streamRarest bound the
	// pauses before it does, which double.
	streamTries  = 8
	streamPause  = time.Second
	streamRarest = time.Minute
	// shortPause is how soon it is looked again whether memory or the disk is short.
	shortPause = time.Second
	// streamEarly bounds the reads that are remembered until it is known of which
	// extents they are.
	streamEarly = 256
)

// stream fetches a device's startup packs, each when it is wanted, one after the
// other. It has a goroutine while there is something to fetch.
type stream struct {
	device *Device
	armed  atomic.Pointer[prefetch.Triggers] // of packs that are not wanted yet; nil: of none
	ctx    context.Context                   // ends with the device
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu        sync.Mutex // guards what follows
	locations *index.Locations
	packs     []index.Startup // of the locations
	wanted    []bool          // of each pack
	queue     []index.Startup // that are wanted, the first is next
	early     []prefetch.Range
	begun     bool // those at mount are wanted
	running   bool
	ended     bool
	left      int64 // bytes, plain, that may be fetched
}

// notArmed stands for triggers that are not known yet.
var notArmed = &prefetch.Triggers{}

func newStream(d *Device) *stream {
	s := &stream{device: d, left: d.ahead.options.Limit}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// follow has it fetch what the locations name, from now on, and nothing that former
// ones named: of what is here or on its way nothing is asked for again.
func (s *stream) follow(locations *index.Locations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locations, s.packs, s.queue = locations, nil, nil
	s.armed.Store(nil)
	if locations == nil || s.left <= 0 {
		return
	}
	s.packs = locations.Startups()
	s.wanted = make([]bool, len(s.packs))
	if len(s.packs) == 0 {
		return
	}
	s.armed.Store(notArmed)
	if s.begun {
		s.start()
	}
}

// begin has the packs fetched that are wanted at mount, and tells whether there are
// any. It is called when it is likely that the device will be read, for every start
// anew, and else happens when it is.
func (s *stream) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
	if len(s.packs) > 0 && !s.running {
		s.left = s.device.ahead.options.Limit
		clear(s.wanted)
		s.armed.Store(notArmed)
		s.start()
	}
	return slices.ContainsFunc(s.packs, func(p index.Startup) bool { return p.AtMount })
}

// start has run do what there is to do. mu is held.
func (s *stream) start() {
	if len(s.packs) > 0 && !s.running && !s.ended {
		s.running = true
		s.work.Go(s.run)
	}
}

// read tells of a read. It costs next to nothing once all packs are wanted.
func (s *stream) read(offset, length int64) {
	t := s.armed.Load()
	if t == nil {
		return
	}
	if t != notArmed {
		if packs := t.Wanted(offset, length); len(packs) > 0 {
			s.want(t, packs)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.early) < streamEarly {
		s.early = append(s.early, prefetch.Range{From: offset, To: offset + length})
	}
	if !s.begun {
		s.begun = true
		s.start()
	}
}

// want has packs fetched that the triggers have named.
func (s *stream) want(t *prefetch.Triggers, packs []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed.Load() == t {
		s.wantLocked(packs)
	}
}

func (s *stream) wantLocked(packs []int) {
	for _, i := range packs {
		if !s.wanted[i] {
			s.wanted[i] = true
			s.queue = append(s.queue, s.packs[i])
		}
	}
	if !slices.Contains(s.wanted, false) {
		s.armed.Store(nil)
	}
	s.start()
}

// arm makes the triggers, and wants what follows from what was read before and from
// the mount.
func (s *stream) arm() {
	s.mu.Lock()
	packs, locations := s.packs, s.locations
	s.mu.Unlock()
	ranges := map[int][]prefetch.Range{}
	var first []int
	for i, p := range packs {
		if p.AtMount {
			first = append(first, i)
			continue
		}
		for _, extent := range p.Triggers {
			if e, err := s.device.extents.Extent(extent); err == nil {
				ranges[i] = append(ranges[i], prefetch.Range{From: e.Offset, To: e.End()})
			}
		}
	}
	t := prefetch.NewTriggers(ranges)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locations != locations {
		return
	}
	s.armed.Store(t)
	s.wantLocked(first)
	for _, r := range s.early {
		s.wantLocked(t.Wanted(r.From, r.To-r.From))
	}
	s.early = nil
}

// end ends what is on its way, and waits for it.
func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
}

// run fetches what is wanted until nothing is.
func (s *stream) run() {
	p := &pass{room: make(chan struct{}, streamUnits)}
	pause, tries := streamPause, 0
	for {
		if s.armed.Load() == notArmed {
			s.arm()
		}
		if pack, ok := s.next(p); ok {
			s.fetch(pack, p)
			continue
		}
		p.flights.Wait()
		if err := p.reset(); err != nil && tries < streamTries && wait(s.ctx, pause) {
			s.device.log.Debug("startup packs are asked for again", "after", pause, "cause", err)
			tries++
			pause = min(2*pause, streamRarest)
			s.again(p)
		} else if err != nil {
			p.packs = nil
		}
		if s.rest() {
			return
		}
	}
}

// next returns a pack to fetch, if it may be now.
func (s *stream) next(p *pass) (pack index.Startup, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || s.ctx.Err() != nil || p.why() != nil {
		return pack, false
	}
	pack = s.queue[0]
	s.queue = s.queue[1:]
	p.packs = append(p.packs, pack)
	return pack, true
}

// again puts the packs of a pass in front of the queue.
func (s *stream) again(p *pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(p.packs, s.queue...)
	p.packs = nil
}

// rest tells whether run has nothing to do, and is to end.
func (s *stream) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil && (len(s.queue) > 0 || s.armed.Load() == notArmed) {
		return false
	}
	s.running = false
	return true
}

// follows tells whether the locations are still those that it follows.
func (s *stream) follows(locations *index.Locations) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.locations == locations
}

// fetch asks for the units of a pack that are not here, in their order.
func (s *stream) fetch(pack index.Startup, p *pass) {
	s.mu.Lock()
	locations := s.locations
	s.mu.Unlock()
	units, err := s.device.ahead.plan(s.ctx, locations, pack)
	if err != nil {
		s.device.log.Debug("a startup pack's units are not known", "pack", pack.Pack.Short(), "cause", err)
		return
	}
	p.begin()
	for _, u := range units {
		if !s.follows(locations) || !s.fetchUnit(chunk.Unit{Pack: pack.Pack, N: u.N}, u.Extents, p) {
			return
		}
	}
}

// fetchUnit asks for one unit when it is its turn, and tells whether to go on.
func (s *stream) fetchUnit(u chunk.Unit, extents []int64, p *pass) bool {
	a := s.device.ahead
	ref, plain := s.device.missing(u, extents)
	if plain == 0 {
		return true
	}
	for a.options.Short() != nil {
		if !wait(s.ctx, shortPause) {
			return false
		}
	}
	select {
	case p.room <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	if p.isOver() || !s.take(plain) {
		<-p.room
		return false
	}
	came, err := s.device.chunks.Stream(s.ctx, ref, plain/2)
	if err != nil || came == nil {
		<-p.room
		s.take(-plain)
		return err == nil
	}
	s.device.expect(extents, &s.device.streamed, &a.streamed)
	p.flights.Go(func() {
		defer func() { <-p.room }()
		n, err := came(s.ctx)
		a.streamed.fetched.Add(n)
		if err == nil { // what does not come is not counted
			s.take(max(n-plain, 0))
		} else {
			s.take(-plain)
		}
		if err == nil && !s.device.chunks.Has(ref.ID) {
			err = errNotKept
		}
		p.learn(err)
		if err != nil {
			s.device.log.Debug("a startup pack's unit does not come", "unit", u, "cause", err)
		}
	})
	if p.careful {
		p.flights.Wait()
		p.careful = p.why() != nil
	}
	return true
}

// isRunning tells whether it has something to fetch.
func (s *stream) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// take tells whether so many bytes more may be fetched.
func (s *stream) take(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left -= n
	return s.left >= 0
}
