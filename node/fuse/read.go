package fuse

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/node/killed"
)

// read is one READ. It is in the server's reads until it is answered.
type read struct {
	unique uint64
	thread uint32 // that waits for it; 0: unknown
	file   *file
	offset int64
	size   int       // in bytes, more than 0
	since  time.Time // when the request arrived
	slot   slot      // busy until the read is answered

	// The server's mu guards what follows.
	place     *list.Element      // in its device's queue; nil: it is not queued
	cancel    context.CancelFunc // nil until the read is active
	why       error              // why the read was cancelled
	signalled bool               // its thread got a signal
}

// read handles a READ: it becomes active, is queued, or is answered at once.
func (s *Server) read(work context.Context, req *request) error {
	s.received.Add(1)
	in, err := decode[gofuse.ReadIn](req.bytes)
	if err != nil {
		return s.send(reply(req.Unique, -int32(errno(err))))
	}
	evicted, known, err := s.admit(work, req, in)
	s.window.follow(known)
	if evicted != nil {
		s.fail(evicted, errOverloaded)
	}
	return err
}

// admit makes a READ active, queues it, or answers it. If a read was evicted from its queue, the
// caller answers the evicted read. known is the number of unanswered reads afterwards.
func (s *Server) admit(work context.Context, req *request, in *gofuse.ReadIn) (evicted *read, known int, err error) {
	r := &read{unique: req.Unique, thread: req.Pid, offset: int64(in.Offset), since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { known = len(s.reads) }()
	if s.reads[r.unique] != nil {
		return nil, 0, nil // the request was resent, and a goroutine answers it already
	}
	if r.unique&resentBit != 0 {
		s.resent.Add(1)
	}
	if r.file = s.files[req.NodeId]; r.file == nil {
		return nil, 0, s.send(reply(r.unique, -int32(errno(errRemoved))))
	}
	if r.offset < 0 || int64(in.Size) > int64(s.buffers.size) {
		return nil, 0, s.send(reply(r.unique, -int32(errno(errMalformed))))
	}
	r.size = int(max(0, min(int64(in.Size), r.file.size-r.offset)))
	if r.size == 0 {
		return nil, 0, s.send(reply(r.unique, 0)) // beyond the end
	}
	r.slot, req.slot = req.slot, nil
	s.reads[r.unique] = r
	active, evicted := s.limits.add(r)
	if active {
		s.start(work, r)
	}
	if evicted != nil {
		s.takeReadLocked(evicted)
	}
	return evicted, 0, nil
}

// start calls the Reader of an active read in a goroutine. mu is held.
func (s *Server) start(work context.Context, r *read) {
	ctx, cancel := context.WithDeadline(work, r.since.Add(s.deadline))
	r.cancel = cancel
	go func() {
		defer cancel()
		s.answerRead(ctx, r)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, next := range s.limits.finish(r) {
			s.start(work, next)
		}
	}()
}

// answerRead calls the Reader and sends its answer.
func (s *Server) answerRead(ctx context.Context, r *read) {
	var missed int64
	b, err := s.buffers.get()
	if err == nil {
		missed, err = r.file.reader.ReadAt(ctx, b.data(r.size), r.offset)
	}
	taken, why := s.takeRead(r)
	switch {
	case !taken: // expire has answered
	case err == nil:
		m := b.message(r.size)
		putHeader(m, gofuse.OutHeader{Length: uint32(len(m)), Unique: r.unique})
		s.sendRead(r, m)
		s.countAnswer(r, missed)
	case why != nil:
		s.fail(r, why)
	default:
		s.fail(r, err)
	}
	if b == nil {
		return
	}
	if err := s.buffers.put(b); err != nil {
		s.log.Error("cannot free a buffer", "err", err)
	}
}

// takeRead removes a read from the unanswered reads. If taken, the caller answers the read;
// otherwise another goroutine has taken it before. If the read was cancelled, why is the reason.
// From then on, a request with the same unique number counts as a new request that the kernel has
// resent.
func (s *Server) takeRead(r *read) (taken bool, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken = s.takeReadLocked(r)
	if why = r.why; why == nil && s.stopping {
		why = errDetached // if the Reader failed, the successor answers the read
	}
	return taken, why
}

func (s *Server) takeReadLocked(r *read) (taken bool) {
	taken = s.reads[r.unique] == r
	if taken {
		delete(s.reads, r.unique)
	}
	return taken
}

// cancel ends the unanswered reads of the devices that match. It fails queued reads at once, and
// cancels the contexts of active reads.
func (s *Server) cancel(why error, match func(*file) bool) {
	s.mu.Lock()
	queued := s.dequeueOld(time.Now(), match)
	for r := range s.limits.active {
		if match(r.file) {
			r.stop(why)
		}
	}
	s.mu.Unlock()
	for _, r := range queued {
		s.fail(r, why)
	}
}

// dequeueOld removes the queued reads of matching devices that arrived at or before the time until.
// The caller holds mu, and answers these reads.
func (s *Server) dequeueOld(until time.Time, match func(*file) bool) (removed []*read) {
	for _, f := range slices.Clone(s.limits.queues) {
		if match(f) {
			removed = append(removed, s.limits.dequeueOld(f, until)...)
		}
	}
	for _, r := range removed {
		s.takeReadLocked(r)
	}
	return removed
}

// stop tells the Reader of an active read to return. The server's mu is held.
func (r *read) stop(why error) {
	r.why = why
	r.cancel()
}

// interrupt notes that the thread of a read got a signal. The read ends only if the thread is being
// killed (package killed): now, or at a later look of watch.
func (s *Server) interrupt(req request) error {
	in, err := decode[gofuse.InterruptIn](req.bytes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	r := s.reads[in.Unique]
	if r != nil {
		r.signalled = true
	}
	s.mu.Unlock()
	if r != nil {
		s.endKilled(r)
	}
	return nil
}

// endAllKilled ends the reads whose threads are being killed.
func (s *Server) endAllKilled() {
	var signalled []*read
	s.mu.Lock()
	for _, r := range s.reads {
		if r.signalled {
			signalled = append(signalled, r)
		}
	}
	s.mu.Unlock()
	for _, r := range signalled {
		s.endKilled(r)
	}
}

// endKilled ends a read if its thread is being killed.
func (s *Server) endKilled(r *read) {
	if !killed.Thread(r.thread) {
		return
	}
	s.mu.Lock()
	queued := r.place != nil
	switch {
	case queued:
		s.limits.dequeue(r)
		s.takeReadLocked(r)
	case s.reads[r.unique] == r:
		r.stop(errKilled)
	}
	s.mu.Unlock()
	if queued {
		s.fail(r, errKilled)
	}
}

// expire fails reads that are still queued at their deadline, and active reads whose Readers have
// not returned readGrace after it.
func (s *Server) expire(now time.Time) {
	s.mu.Lock()
	late := s.dequeueOld(now.Add(-s.deadline), func(*file) bool { return true })
	for r := range s.limits.active {
		if now.Sub(r.since) >= s.deadline+readGrace && s.takeReadLocked(r) {
			late = append(late, r)
		}
	}
	s.mu.Unlock()
	for _, r := range late {
		s.fail(r, errTooLate)
	}
}

// fail answers a read with an error.
func (s *Server) fail(r *read, err error) {
	if errors.Is(err, errDetached) {
		return // the successor answers it
	}
	code := errno(err)
	if code == unix.EIO {
		s.countFailure(r.file, err)
		s.logFailure(r, err)
	}
	s.sendRead(r, reply(r.unique, -int32(code)))
}

// logFailure logs why a read fails: its process only sees EIO.
func (s *Server) logFailure(r *read, err error) {
	s.mu.Lock()
	now := time.Now()
	tooSoon := now.Sub(r.file.logged) < logInterval
	if !tooSoon {
		r.file.logged = now
	}
	s.mu.Unlock()
	if !tooSoon {
		s.log.Error("read failed", "tree", r.file.id.Short(), "offset", r.offset, "bytes", r.size, "err", err)
	}
}

// sendRead sends the answer to a read. The kernel refuses an answer only because of a fault in this
// program. It then fails the read with EIO, so no process goes on waiting.
func (s *Server) sendRead(r *read, message []byte) {
	if err := s.send(message); err != nil {
		s.log.Error("answer refused by the kernel", "dir", s.dir, "err", err)
	}
	s.journal.release(r.slot)
}
