package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Serve answers requests until the directory is unmounted or ctx is done. It is called once.
//
// When ctx is done, Serve receives no more requests, finishes the reads that it can finish within
// drainTimeout, and returns nil. The mount stays. A server that adopts the connection answers the
// remaining requests.
func (s *Server) Serve(ctx context.Context) error {
	s.mu.Lock()
	s.served = true
	s.mu.Unlock()
	// Active reads may continue for up to drainTimeout after ctx is done.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var background sync.WaitGroup
	background.Go(func() { s.stopWith(ctx, work) })
	background.Go(func() { s.watch(work) })
	s.window.follow(0)
	err := s.loop(work)
	s.setStopping()
	if err == nil && ctx.Err() != nil {
		s.await(drainTimeout, func() bool { return len(s.reads) == 0 })
	}
	s.cancel(errDetached, func(*file) bool { return true })
	if !s.await(stopTimeout, func() bool { return len(s.limits.active) == 0 }) {
		err = errors.Join(err,
			fmt.Errorf("serve %s: a reader still runs %v after it was cancelled", s.dir, stopTimeout))
	}
	stop()
	background.Wait()
	s.window.open()
	return errors.Join(err, s.journal.unmap())
}

// stopWith ends the loop when ctx is done. It must return before Serve does: after Serve has
// returned, the caller may close the connection.
func (s *Server) stopWith(ctx, work context.Context) {
	select {
	case <-ctx.Done():
		s.setStopping()
		if err := s.conn.SetReadDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, os.ErrClosed) {
			s.log.Error("cannot stop receiving requests", "dir", s.dir, "err", err)
		}
	case <-work.Done():
	}
}

func (s *Server) setStopping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}

// watch fails expired reads, ends those of killed processes, and detects stalls.
func (s *Server) watch(work context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.expire(now)
			s.endAllKilled()
			s.checkKernel(now)
		case <-work.Done():
			return
		}
	}
}

// loop receives requests in one goroutine, which spends one or two microseconds on each. Longer
// work is done in other goroutines. Because a single goroutine receives, a request is known before
// its INTERRUPT is received.
func (s *Server) loop(work context.Context) error {
	if s.resume {
		if err := s.serveJournal(work); err != nil {
			return err
		}
	}
	in, slot := s.receiver(), s.journal.acquire()
	for {
		slot.clear()
		bytes, err := in.receive(slot)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue // nothing was received: the request was cancelled, or a signal arrived
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed), errors.Is(err, unix.ENODEV):
			return nil // stopped, closed or unmounted
		case errors.Is(err, unix.ECONNABORTED) && s.unmounting.Load():
			return nil // unmounted: on a busy machine, the kernel rarely returns this instead of ENODEV
		default:
			return fmt.Errorf("receive a request of %s: %w", s.dir, err)
		}
		if s.serveOne(work, bytes, slot) {
			slot = s.journal.acquire()
		}
	}
}

// serveOne serves one request and reports whether the request still needs its slot.
func (s *Server) serveOne(work context.Context, bytes []byte, slot slot) (keepsSlot bool) {
	req, err := parseRequest(bytes)
	if err != nil {
		s.log.Error("request ignored", "dir", s.dir, "err", err)
		return false
	}
	req.slot = slot
	if err := s.handle(work, &req); err != nil {
		s.log.Error("answer refused by the kernel", "dir", s.dir, "opcode", req.Opcode, "err", err)
	}
	return req.slot == nil
}

// receiver receives requests, one after the other.
type receiver struct {
	server *Server
	into   [2][]byte // a slot, and space for the bytes that do not fit into the slot
	n      int       // bytes that the last system call has read
	err    error     // error of the last system call
	read   func(fd uintptr) bool
}

func (s *Server) receiver() *receiver {
	r := &receiver{server: s, into: [2][]byte{1: make([]byte, requestSize)}}
	r.read = func(fd uintptr) bool {
		r.n, r.err = unix.Readv(int(fd), r.into[:])
		return r.err != unix.EAGAIN
	}
	return r
}

// receive receives one request. The kernel writes the beginning of the request into the slot. The
// returned bytes are valid until the next call.
func (r *receiver) receive(slot slot) ([]byte, error) {
	r.into[0] = slot
	err := r.server.raw.Read(r.read)
	switch {
	case err == nil:
		err = r.err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
	default:
		// Go's poller knows that the connection has ended, but not why. Another read returns the
		// cause.
		if r.server.raw.Control(func(fd uintptr) { r.read(fd) }) != nil {
			return nil, os.ErrClosed
		}
		err = r.err
	}
	if err != nil {
		return nil, err
	}
	rest := r.into[1][:max(0, r.n-len(slot))]
	if slot == nil {
		return rest, nil
	}
	return append(slot[:min(r.n, len(slot))], rest...), nil // a copy, if the request does not fit into the slot
}

// handle handles a request. All requests but READs are answered before handle returns. A READ that
// is answered later takes over the request's slot.
func (s *Server) handle(work context.Context, req *request) error {
	switch req.Opcode {
	case opRead:
		return s.read(work, req)
	case opInterrupt:
		return s.interrupt(*req)
	case opForget, opBatchForget: // they have no answer, and lookups are not counted
		s.forget(*req)
		return nil
	case opNotifyReply:
		return nil // it has no answer
	}
	payload, err := s.answer(*req)
	if err != nil {
		return s.send(reply(req.Unique, -int32(errno(err))))
	}
	return s.send(reply(req.Unique, 0, payload))
}

// answer returns the answer to a request that needs no waiting.
func (s *Server) answer(req request) ([]byte, error) {
	switch req.Opcode {
	case opLookup:
		return s.lookup(req)
	case opGetattr:
		return s.getattr(req)
	case opOpen:
		return s.open(req)
	case opOpendir:
		return wire(&gofuse.OpenOut{}), nil
	case opReaddir:
		return s.readdir(req)
	case opStatfs:
		return wire(&gofuse.StatfsOut{Bsize: pageSize, Frsize: pageSize, NameLen: 255}), nil
	case opRelease, opReleasedir, opDestroy:
		return nil, nil
	default:
		return nil, errNotImplemented
	}
}

func (s *Server) lookup(req request) ([]byte, error) {
	name, err := req.name()
	if err != nil {
		return nil, err
	}
	id, err := chunk.ParseID(name)
	if err != nil || req.NodeId != gofuse.FUSE_ROOT_ID {
		return nil, errNoDevice
	}
	f := s.device(id)
	if f == nil {
		return nil, errNoDevice
	}
	return wire(&gofuse.EntryOut{NodeId: f.node, EntryValid: forever, AttrValid: forever, Attr: f.attr()}), nil
}

func (f *file) attr() gofuse.Attr {
	return gofuse.Attr{Ino: f.node, Size: uint64(f.size), Blocks: uint64(f.size / 512),
		Mode: fileMode, Nlink: 1, Blksize: pageSize}
}

func (s *Server) getattr(req request) ([]byte, error) {
	if req.NodeId == gofuse.FUSE_ROOT_ID {
		root := gofuse.Attr{Ino: gofuse.FUSE_ROOT_ID, Mode: dirMode, Nlink: 2, Blksize: pageSize}
		return wire(&gofuse.AttrOut{AttrValid: forever, Attr: root}), nil
	}
	f := s.file(req.NodeId)
	if f == nil {
		return nil, errRemoved
	}
	return wire(&gofuse.AttrOut{AttrValid: forever, Attr: f.attr()}), nil
}

func (s *Server) open(req request) ([]byte, error) {
	in, err := decode[gofuse.OpenIn](req.bytes)
	if err != nil {
		return nil, err
	}
	if s.file(req.NodeId) == nil {
		return nil, errRemoved
	}
	if in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return nil, errReadOnly
	}
	// Direct I/O, as the tree's file system caches the pages already. No flush, as closing a
	// descriptor has no effect.
	const flags = gofuse.FOPEN_DIRECT_IO | gofuse.FOPEN_KEEP_CACHE | gofuse.FOPEN_NOFLUSH
	return wire(&gofuse.OpenOut{OpenFlags: flags}), nil
}

// readdir lists the directory from an offset on: 0 is the start, 1 is after ".", 2 is after "..",
// and a node ID is after that device.
func (s *Server) readdir(req request) ([]byte, error) {
	in, err := decode[gofuse.ReadIn](req.bytes)
	if err != nil {
		return nil, err
	}
	if req.NodeId != gofuse.FUSE_ROOT_ID {
		return nil, errRemoved
	}
	limit := int(min(in.Size, maxRead))
	var b []byte
	ok := true
	for i, dots := range []string{".", ".."} {
		if next := uint64(i) + 1; ok && in.Offset < next {
			b, ok = appendDirent(b, limit, gofuse.FUSE_ROOT_ID, next, unix.DT_DIR, dots)
		}
	}
	for _, f := range s.list(in.Offset) {
		if !ok {
			break
		}
		b, ok = appendDirent(b, limit, f.node, f.node, unix.DT_REG, f.name)
	}
	return b, nil
}

// send sends one message to the kernel. It is no error if the kernel no longer waits for the
// message: the process may be gone, the mount unmounted, or the request resent.
func (s *Server) send(message []byte) error {
	var failed error
	err := s.raw.Control(func(fd uintptr) { // not conn.Write, which locks out other writers
		for {
			if _, failed = unix.Write(int(fd), message); failed != unix.EINTR {
				return
			}
		}
	})
	if err != nil || errors.Is(failed, unix.ENOENT) || errors.Is(failed, unix.ENODEV) {
		return nil // err: the connection is closed
	}
	return failed
}
