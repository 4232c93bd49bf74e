package prefetch

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/node/device"
	"lighter/sleep"
)

// startup fetches a device's startup packs when they are wanted: at mount, or when a read triggers
// them. The pack that was wanted last goes first, because its chunks are being read now. startup
// has a goroutine while there is something to fetch.
type startup struct {
	device   *device.Device
	cache    Cache
	streamer Streamer
	loader   loader
	plans    chan struct{} // of the Prefetcher
	limit    int64         // Options.Limit
	blocked  func() error  // Options.Blocked
	log      *slog.Logger

	triggers atomic.Pointer[triggers]         // nil: there are no packs, or all are wanted already
	packIDs  atomic.Pointer[map[chunk.ID]int] // the index in packs of each pack
	account  account
	credit   credit
	paused   atomic.Bool // after a failure, until the next attempt

	ctx  context.Context // ends with the device
	stop context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex // guards what follows
	locations *index.Locations
	packs     []index.Startup // the packs that locations name
	wanted    []bool          // for each pack: it is or was queued
	queue     []*task         // wanted packs, in order
	early     []span          // reads that came before the triggers were known
	begun     bool            // begin was called, or the device was read
	reads     int64           // the device's number of reads when begin was last called
	cold      bool            // the device had not been read yet when begin was last called
	running   bool            // the goroutine (run) runs
	ended     bool            // end was called
	left      int64           // uncompressed bytes that may still be fetched
}

var _ device.Observer = (*startup)(nil)

// unknown is the value of startup.triggers until the triggers are read from the locations.
var unknown = &triggers{}

func newStartup(p *Prefetcher, d *device.Device, source Source) *startup {
	s := &startup{device: d, cache: source, streamer: source,
		loader: loader{&p.loads, source, d.Extents()}, plans: p.plans,
		limit: p.options.Limit, left: p.options.Limit, blocked: p.options.Blocked, log: p.log,
		account: newAccount(d.Extents(), &p.startup)}
	s.credit = newCredit(&s.account)
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// setLocations replaces the locations. From then on only packs that the new locations name are
// fetched. Cached chunks and units in flight are not requested again.
func (s *startup) setLocations(locations *index.Locations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.credit.wake()
	s.locations, s.packs, s.queue = locations, nil, nil
	s.triggers.Store(nil)
	ids := map[chunk.ID]int{}
	defer func() { s.packIDs.Store(&ids) }()
	if locations == nil {
		return
	}
	packs := locations.Startups()
	for i, p := range packs {
		ids[p.Pack] = i
	}
	if len(packs) == 0 || s.left <= 0 {
		return
	}
	s.packs, s.wanted = packs, make([]bool, len(packs))
	s.triggers.Store(unknown)
	if s.begun {
		s.start()
	}
}

// begin requests the packs that are wanted at mount, unless packs are being fetched. It is called
// when a start is likely to follow. If the device is read before begin is called, the first read
// requests these packs. isNew reports whether the device was read since the last call, hasPacks
// whether any pack is wanted at mount.
func (s *startup) begin() (isNew, hasPacks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
	reads := s.device.Reads()
	isNew = reads != s.reads
	s.reads = reads
	if len(s.packs) > 0 && (!s.running || isNew && s.credit.waiting.Load()) {
		s.left, s.queue, s.cold = s.limit, nil, reads == 0
		if isNew {
			s.account.forget()
		}
		clear(s.wanted)
		s.triggers.Store(unknown)
		s.start()
		s.credit.wake()
	}
	return isNew, slices.ContainsFunc(s.packs, func(p index.Startup) bool { return p.AtMount })
}

// start starts the goroutine (run) if there may be something to do and the goroutine does not run.
// The caller holds mu.
func (s *startup) start() {
	if len(s.packs) > 0 && !s.running && !s.ended {
		s.running = true
		s.work.Go(s.run)
	}
}

// Observe requests the packs that a read triggers. Once all packs are wanted, Observe takes only a
// few nanoseconds.
func (s *startup) Observe(r device.Read) {
	if s.account.use(r) {
		s.credit.wake()
	}
	at := span{r.Offset, r.Offset + r.Length}
	switch t := s.triggers.Load(); t {
	case nil:
	case unknown:
		s.keep(at)
	default:
		if packs := t.wanted(at); len(packs) > 0 {
			s.want(t, packs)
		}
	}
}

// keep remembers a read until the triggers are known.
func (s *startup) keep(read span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.early) < maxEarly {
		s.early = append(s.early, read)
	}
	if !s.begun {
		s.begun = true
		s.start()
	}
}

// want queues packs, by their numbers, that triggers t have returned, unless newer triggers have
// replaced t.
func (s *startup) want(t *triggers, packs []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.triggers.Load() == t {
		s.wantLocked(packs)
	}
}

func (s *startup) wantLocked(packs []int) {
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
		s.triggers.Store(nil)
	}
	s.start()
}

// smallFirst moves small packs to the front. Otherwise the hub's order stays: the order in which
// starts first read the packs.
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

// arm reads the triggers from the locations, and requests the packs that are wanted at mount and
// those that the early reads trigger.
func (s *startup) arm() {
	s.mu.Lock()
	packs, locations := s.packs, s.locations
	s.mu.Unlock()
	ranges := map[int][]span{}
	var atMount []int
	for i, p := range packs {
		if p.AtMount {
			atMount = append(atMount, i)
			continue
		}
		for _, extent := range p.Triggers {
			if e, err := s.device.Extents().Extent(extent); err == nil {
				ranges[i] = append(ranges[i], span{e.Offset, e.End()})
			}
		}
	}
	t := newTriggers(ranges)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locations != locations {
		return
	}
	s.triggers.Store(t)
	s.wantLocked(atMount)
	for _, r := range s.early {
		s.wantLocked(t.wanted(r))
	}
	s.early = nil
}

// end ends all fetches, and waits for those in flight.
func (s *startup) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
}

// awaitCache waits until the cache knows what a previous process has stored, up to maxLoading.
// Otherwise packs that are cached would be fetched again after a crash of the node.
func (s *startup) awaitCache() {
	for end := time.Now().Add(maxLoading); s.cache.IsLoading() && time.Now().Before(end); {
		if !sleep.For(s.ctx, maxLoading/100) {
			return
		}
	}
}

// run fetches wanted packs until no more are queued.
func (s *startup) run() {
	s.awaitCache()
	p := &pass{slots: make(chan struct{}, maxUnits)}
	backoff := sleep.Backoff{First: time.Second, Most: maxPause}
	failures := 0
	for {
		if s.triggers.Load() == unknown {
			s.arm()
			p.tasks, failures = nil, 0
		}
		s.credit.wait(s.ctx, s.hasTasks)
		if t, u := s.next(p); t != nil {
			if !s.request(t, u, p) {
				t.units = nil
			}
			continue
		}
		p.flights.Wait()
		if err := p.reset(); err != nil {
			failures++
			if pause := backoff.After(failures); failures <= maxRetries && s.pause(pause) {
				s.log.Debug("startup packs requested again", "duration", pause, "err", err)
				s.requeue(p)
			}
		}
		p.tasks = nil
		if s.isDone() {
			return
		}
	}
}

// next returns the unit to request now, if there is one.
func (s *startup) next(p *pass) (*task, unit) {
	for s.ctx.Err() == nil && p.err() == nil {
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
	return nil, unit{}
}

// plan lists a pack's units, and loads their cached chunks in the background.
func (s *startup) plan(t *task) {
	t.planned = true
	select {
	case s.plans <- struct{}{}:
	case <-s.ctx.Done():
		return
	}
	units, err := unitsOf(t.locations, t.pack)
	<-s.plans
	if err != nil {
		s.log.Debug("cannot list the units of a startup pack", "pack", t.pack.Pack.Short(), "err", err)
	}
	t.units = units
	if t.load {
		s.work.Go(func() {
			s.loader.load(s.ctx, units, func(bytes int64) bool { return s.blocked() == nil && s.spend(bytes) })
		})
	}
}

// requeue puts the packs of a failed pass at the front of the queue, unless the locations were
// replaced.
func (s *startup) requeue(p *pass) {
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

func (s *startup) hasTasks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
}

// isDone reports whether the goroutine has nothing to do and is to end.
func (s *startup) isDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil && (len(s.queue) > 0 || s.triggers.Load() == unknown) {
		return false
	}
	s.running = false
	return true
}

// contains reports whether an extent's chunk is in a startup pack.
func (s *startup) contains(extent int64) bool {
	ids := *s.packIDs.Load()
	if len(ids) == 0 {
		return false
	}
	unit, _ := s.device.Unit(extent)
	_, ok := ids[unit.Pack]
	return ok
}

// wants reports whether a pack is a startup pack that is or was wanted, or is fetched at mount.
func (s *startup) wants(pack chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := (*s.packIDs.Load())[pack]
	return ok && len(s.packs) > 0 && (s.wanted[i] || s.packs[i].AtMount)
}

// isRunning reports whether packs are being fetched.
func (s *startup) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running && !s.credit.waiting.Load() && !s.paused.Load()
}

// pause waits before a retry and reports whether to retry. During the pause the other observers
// fetch what they leave to startup otherwise.
func (s *startup) pause(d time.Duration) bool {
	s.paused.Store(true)
	defer s.paused.Store(false)
	return sleep.For(s.ctx, d)
}

// spend takes bytes from the budget if the budget suffices, and reports whether it did.
func (s *startup) spend(bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > s.left { // smaller units may still fit
		return false
	}
	s.left -= bytes
	return true
}

// charge takes bytes from the budget in any case. A negative number returns bytes to the budget.
func (s *startup) charge(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left -= bytes
}
