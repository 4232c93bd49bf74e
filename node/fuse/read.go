package fuse

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// readDeadline is how long a Reader has, from when the request was read.
	// The kernel complains of tasks that hang for 120 s.
	readDeadline = 100 * time.Second
	// readGrace is how much later a read fails whose Reader did not return.
	readGrace = 10 * time.Second

	// callOffBatch bounds how many reads are called off while mu is held: meanwhile no
	// other read can begin or be answered.
	callOffBatch = 256

	// logInterval is the least time between two log lines about failed reads of
	// one device.
	logInterval = 10 * time.Second

	// resentBit in a request's unique number says that it was sent before
	// (FUSE_UNIQUE_RESEND).
	resentBit = 1 << 63
)

// read is one READ. It is in the server's reads until it is answered.
type read struct {
	unique uint64
	file   *file
	offset int64
	size   int // in bytes, more than 0
	since  time.Time
	slot   slot // busy until it is answered

	// The server's mu guards what follows.
	place  *list.Element      // in its device's queue while the read waits
	cancel context.CancelFunc // nil until the read begins
	why    error              // why it was called off
}

// read takes a READ: it begins, waits, or is answered at once.
func (s *Server) read(work context.Context, req *request) error {
	s.taken.Add(1)
	in, err := decode[fuse.ReadIn](req.bytes)
	if err != nil {
		return s.send(reply(req.Unique, -int32(errno(err))))
	}
	evicted, known, err := s.enter(work, req, in)
	s.window.follow(known)
	if evicted != nil {
		s.fail(evicted, errOverloaded)
	}
	return err
}

// enter has a READ begin or wait, or answers it. If another read had to go for it, the caller
// answers that one. known is the number of unanswered reads then.
func (s *Server) enter(work context.Context, req *request, in *fuse.ReadIn) (evicted *read, known int, err error) {
	r := &read{unique: req.Unique, offset: int64(in.Offset), since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { known = len(s.reads) }()
	if s.reads[r.unique] != nil {
		return nil, 0, nil // sent again although it is in work here: its answer will do
	}
	if r.unique&resentBit != 0 {
		s.resent.Add(1)
	}
	if r.file = s.files[req.NodeId]; r.file == nil {
		return nil, 0, s.send(reply(r.unique, -int32(errno(errRemoved))))
	}
	if r.offset < 0 || int64(in.Size) > int64(s.buffers.room) {
		return nil, 0, s.send(reply(r.unique, -int32(errno(errMalformed))))
	}
	r.size = int(max(0, min(int64(in.Size), r.file.size-r.offset)))
	if r.size == 0 {
		return nil, 0, s.send(reply(r.unique, 0)) // beyond the end
	}
	r.slot, req.slot = req.slot, nil
	s.reads[r.unique] = r
	begins, evicted := s.limits.enter(r)
	if begins {
		s.begin(work, r)
	}
	if evicted != nil {
		s.settleLocked(evicted)
	}
	return evicted, 0, nil
}

// begin has the Reader called. mu is held.
func (s *Server) begin(work context.Context, r *read) {
	ctx, cancel := context.WithDeadline(work, r.since.Add(s.deadline))
	r.cancel = cancel
	go func() {
		defer cancel()
		s.answerRead(ctx, r)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, next := range s.limits.leave(r) {
			s.begin(work, next)
		}
	}()
}

// answerRead calls the Reader and sends what it says.
func (s *Server) answerRead(ctx context.Context, r *read) {
	var missed int64
	b, err := s.buffers.take()
	if err == nil {
		missed, err = r.file.reader.ReadAt(ctx, b.data(r.size), r.offset)
	}
	mine, why := s.settle(r)
	switch {
	case !mine: // the deadline's watch has answered
	case err == nil:
		m := b.message(r.size)
		putHeader(m, fuse.OutHeader{Length: uint32(len(m)), Unique: r.unique})
		s.deliver(r, m)
		s.answered(r, missed)
	case why != nil:
		s.fail(r, why)
	default:
		s.fail(r, err)
	}
	if b == nil {
		return
	}
	if err := s.buffers.give(b); err != nil {
		s.log.Error("a buffer is lost", "cause", err)
	}
}

// settle makes the caller the one who answers, unless somebody has been. From
// here on the same request may come again (Resend): it is then a new one.
func (s *Server) settle(r *read) (mine bool, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine = s.settleLocked(r)
	if why = r.why; why == nil && s.leaving {
		why = errDetached // if it failed, then because everything is being stopped
	}
	return mine, why
}

func (s *Server) settleLocked(r *read) (mine bool) {
	mine = s.reads[r.unique] == r
	if mine {
		delete(s.reads, r.unique)
	}
	return mine
}

// callOff ends the unanswered reads of the devices that match: those that wait at once, those in
// work through their contexts.
func (s *Server) callOff(why error, match func(*file) bool) {
	now := time.Now()
	for _, f := range s.queues() { // first: what waits may begin meanwhile, and is then in work
		if match(f) {
			s.failOld(f, now, why)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.limits.working {
		if match(r.file) {
			r.callOff(why)
		}
	}
}

// queues returns the devices for which reads wait.
func (s *Server) queues() []*file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.limits.queues)
}

// callOff tells the Reader to stop. The server's mu is held.
func (r *read) callOff(why error) {
	r.why = why
	r.cancel()
}

// failOld answers the reads that wait for a device and came until then.
func (s *Server) failOld(f *file, until time.Time, why error) {
	for {
		s.mu.Lock()
		batch := s.limits.dropOld(f, until, callOffBatch)
		for _, r := range batch {
			s.settleLocked(r)
		}
		s.mu.Unlock()
		for _, r := range batch {
			s.fail(r, why)
		}
		if len(batch) < callOffBatch {
			return
		}
	}
}

// interrupt calls off one read: the process that waits for it got a signal.
func (s *Server) interrupt(req request) error {
	in, err := decode[fuse.InterruptIn](req.bytes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	r := s.reads[in.Unique]
	waited := r != nil && r.place != nil
	switch {
	case waited:
		s.limits.drop(r)
		s.settleLocked(r)
	case r != nil:
		r.callOff(errInterrupted)
	}
	s.mu.Unlock()
	if waited {
		s.fail(r, errInterrupted)
	}
	return nil
}

// expire answers reads that waited until their deadline, and reads whose
// Readers did not heed it.
func (s *Server) expire(now time.Time) {
	for _, f := range s.queues() {
		s.failOld(f, now.Add(-s.deadline), errTooLate)
	}
	s.mu.Lock()
	var stuck []*read
	for r := range s.limits.working {
		if now.Sub(r.since) >= s.deadline+readGrace && s.settleLocked(r) {
			stuck = append(stuck, r)
		}
	}
	s.mu.Unlock()
	for _, r := range stuck {
		s.fail(r, errTooLate)
	}
}

// fail answers a read with an error.
func (s *Server) fail(r *read, err error) {
	if errors.Is(err, errDetached) {
		return // the successor gets it again
	}
	code := errno(err)
	if code == unix.EIO {
		s.gaveUp(r.file, err)
		s.complain(r, err)
	}
	s.deliver(r, reply(r.unique, -int32(code)))
}

// complain logs why a process gets EIO, which cannot say it.
func (s *Server) complain(r *read, err error) {
	s.mu.Lock()
	now := time.Now()
	quiet := now.Sub(r.file.complained) < logInterval
	if !quiet {
		r.file.complained = now
	}
	s.mu.Unlock()
	if !quiet {
		s.log.Error("read failed", "device", r.file.id.Short(), "offset", r.offset, "bytes", r.size, "cause", err)
	}
}

// deliver sends an answer to a read. An answer that the kernel refuses is a
// fault of this program, and then no process waits for it any more.
func (s *Server) deliver(r *read, message []byte) {
	if err := s.send(message); err != nil {
		s.log.Error("answer refused by the kernel", "dir", s.dir, "cause", err)
	}
	s.journal.give(r.slot)
}
