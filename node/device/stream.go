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
	// streamEarly bounds the reads that are remembered until it is known of which
	// extents they are.
	streamEarly = 256
)

// stream fetches a device's startup packs, each when it is wanted: the one that was
// wanted last first, for that is what is being read. It has a goroutine while there is
// something to fetch.
type stream struct {
	device *Device
	armed  atomic.Pointer[prefetch.Triggers] // of packs that are not wanted yet; nil: of none
	ctx    context.Context                   // ends with the device
	stop   context.CancelFunc
	work   sync.WaitGroup
	credit credit
	paused atomic.Bool // after a failure, until it is tried again

	mu        sync.Mutex // guards what follows
	locations *index.Locations
	packs     []index.Startup // of the locations
	wanted    []bool          // of each pack
	queue     []*task         // of packs that are wanted, the first is next
	early     []prefetch.Range
	begun     bool  // those at mount are wanted
	reads     int64 // of the device, when it last began
	cold      bool  // it had read nothing then
	running   bool
	ended     bool
	left      int64 // bytes, plain, that may be fetched
}

// notArmed stands for triggers that are not known yet.
var notArmed = &prefetch.Triggers{}

func newStream(d *Device) *stream {
	s := &stream{device: d, left: d.ahead.options.Limit, credit: newCredit()}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// follow has it fetch what the locations name, from now on, and nothing that former
// ones named: of what is here or on its way nothing is asked for again.
func (s *stream) follow(locations *index.Locations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.credit.free()
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
	reads := s.device.faults.Load()
	isNew := reads != s.reads
	s.reads = reads
	if isNew {
		s.device.around.forget()
	}
	if len(s.packs) > 0 && (!s.running || isNew && s.credit.held.Load()) {
		s.left, s.queue, s.cold = s.device.ahead.options.Limit, nil, reads == 0
		if isNew {
			s.credit.zone.forget()
		}
		clear(s.wanted)
		s.armed.Store(notArmed)
		s.start()
		s.credit.free()
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
	var tasks []*task
	for _, i := range packs {
		if !s.wanted[i] {
			s.wanted[i] = true
			p := s.packs[i]
			tasks = append(tasks, &task{pack: p, locations: s.locations, load: s.cold || !p.AtMount})
		}
	}
	if len(tasks) > 0 {
		s.queue = append(smallFirst(tasks), s.queue...)
		s.credit.grant()
	}
	if !slices.Contains(s.wanted, false) {
		s.armed.Store(nil)
	}
	s.start()
}

// smallPart is which part of another pack one may have to keep it waiting.
const smallPart = 16

// smallFirst puts packs that one read wants in the order in which they are fetched: a
// small one keeps a large one waiting for next to nothing. Else they stay in the hub's
// order, which is that of their first use.
func smallFirst(tasks []*task) []*task {
	var largest int64
	for _, t := range tasks {
		largest = max(largest, t.pack.Bytes())
	}
	var small, others []*task
	for _, t := range tasks {
		if t.pack.Bytes() <= largest/smallPart {
			small = append(small, t)
		} else {
			others = append(others, t)
		}
	}
	return append(small, others...)
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
			p.tasks, pause, tries = nil, streamPause, 0
		}
		s.credit.wait(s.ctx, s.isWanted)
		if t, u := s.next(p); t != nil {
			if !s.fetch(t, u, p) {
				t.units = nil
			}
			continue
		}
		p.flights.Wait()
		if err := p.reset(); err != nil && tries < streamTries && s.pause(pause) {
			s.device.log.Debug("startup packs are asked for again", "after", pause, "cause", err)
			tries++
			pause = min(2*pause, streamRarest)
			s.again(p)
		}
		p.tasks = nil
		if s.rest() {
			return
		}
	}
}

// next returns the unit to ask for, if there is one and it may be asked for now.
func (s *stream) next(p *pass) (*task, prefetch.Unit) {
	for s.ctx.Err() == nil && p.why() == nil {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.mu.Unlock()
			break
		}
		t := s.queue[0]
		if t.planned && len(t.units) == 0 {
			s.queue, t.units = s.queue[1:], nil
		}
		s.mu.Unlock()
		if !t.planned {
			s.plan(t)
			p.tasks = append(p.tasks, t)
		}
		if len(t.units) > 0 {
			u := t.units[0]
			t.units = t.units[1:]
			return t, u
		}
	}
	return nil, prefetch.Unit{}
}

// plan lists a pack's units, and has the disk read what is here of them.
func (s *stream) plan(t *task) {
	t.planned = true
	var err error
	if t.units, err = s.device.ahead.plan(s.ctx, t.locations, t.pack); err != nil {
		s.device.log.Debug("a startup pack's units are not known", "pack", t.pack.Pack.Short(), "cause", err)
	}
	if t.load {
		s.load(t.units)
	}
}

// again puts the packs of a pass in front of the queue, if they are still named.
func (s *stream) again(p *pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tasks []*task
	for _, t := range p.tasks {
		if t.locations == s.locations {
			tasks = append(tasks, &task{pack: t.pack, locations: t.locations})
		}
	}
	s.queue = append(tasks, s.queue...)
}

// isWanted tells whether there is something to fetch.
func (s *stream) isWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
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

// wants tells whether a pack is one of the startup packs that are wanted, or were.
func (s *stream) wants(pack chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.packs, func(p index.Startup) bool { return p.Pack == pack })
	return i >= 0 && (s.wanted[i] || s.packs[i].AtMount)
}

// isRunning tells whether it has something to fetch, and does.
func (s *stream) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running && !s.credit.held.Load() && !s.paused.Load()
}

// pause waits before it is tried again, and tells whether it is to be. What readers
// miss meanwhile others read ahead.
func (s *stream) pause(d time.Duration) bool {
	s.paused.Store(true)
	defer s.paused.Store(false)
	return wait(s.ctx, d)
}

// take tells whether so many bytes more may be fetched.
func (s *stream) take(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left -= n
	return s.left >= 0
}
