package fuse

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

const (
	// forever is how long, in seconds, the kernel may keep what it was told of a
	// device: nothing about it ever changes. (Larger numbers overflow in some
	// kernels' arithmetic.)
	forever = math.MaxInt32

	fileMode = unix.S_IFREG | 0o400
	dirMode  = unix.S_IFDIR | 0o500

	// watchInterval is how often the deadlines of reads are looked at.
	watchInterval = time.Second

	// drainTimeout is how long a server that gives up its connection goes on
	// with the reads that it has begun; stopTimeout, how long it waits for
	// Readers to return that were then told to stop.
	drainTimeout = 2 * time.Second
	stopTimeout  = 5 * time.Second
)

// errServed says that Serve was called before.
var errServed = errors.New("a server serves once")

// Serve answers requests until the directory is unmounted or ctx is done. It is
// called once.
//
// When ctx is done, Serve takes no more requests, finishes the reads that it can
// finish soon, and returns nil; the mount stays. The remaining requests are left
// to whoever adopts the connection.
func (s *Server) Serve(ctx context.Context) error {
	s.mu.Lock()
	served := s.served
	s.served = true
	s.mu.Unlock()
	if served {
		return fmt.Errorf("serve %s: %w", s.dir, errServed)
	}
	// Reads that have begun outlive ctx, by drainTimeout at most.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var helpers sync.WaitGroup
	helpers.Go(func() { s.stopLoop(ctx, work) })
	helpers.Go(func() { s.watch(work) })
	err := s.loop(work)
	s.leave()
	if err == nil && ctx.Err() != nil {
		s.await(drainTimeout, func() bool { return len(s.reads) == 0 })
	}
	s.callOff(errDetached, func(*file) bool { return true })
	if !s.await(stopTimeout, func() bool { return len(s.limits.working) == 0 }) {
		err = errors.Join(err, fmt.Errorf("serve %s: a reader still runs, %v after it was told to stop", s.dir, stopTimeout))
	}
	stop()
	helpers.Wait()
	return errors.Join(err, s.journal.close())
}

// stopLoop ends the loop when ctx is done.
func (s *Server) stopLoop(ctx, work context.Context) {
	select {
	case <-ctx.Done():
		s.leave()
		if err := s.conn.SetReadDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, os.ErrClosed) {
			s.log.Error("cannot stop serving", "dir", s.dir, "cause", err)
		}
	case <-work.Done():
	}
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
}

// watch answers for Readers that do not answer in time, and sees requests that stay in the kernel.
func (s *Server) watch(work context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.expire(now)
			s.lookForStall(now)
		case <-work.Done():
			return
		}
	}
}

// loop reads requests. One goroutine does: it takes a microsecond or two a
// request, and what takes longer it leaves to others. That only one does also
// means that a request is known before its INTERRUPT is read.
func (s *Server) loop(work context.Context) error {
	if s.resume {
		if err := s.serveJournal(work); err != nil {
			return err
		}
	}
	in, place := s.inbox(), s.journal.take()
	for {
		place.clear()
		bytes, err := in.receive(place)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue // the request was called off while we read it
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed), errors.Is(err, unix.ENODEV):
			return nil // told to stop, closed, unmounted
		default:
			return fmt.Errorf("read a request of %s: %w", s.dir, err)
		}
		if s.serveOne(work, bytes, place) {
			place = s.journal.take()
		}
	}
}

// serveOne serves one request. It tells whether the request still needs its slot.
func (s *Server) serveOne(work context.Context, bytes, place slot) (taken bool) {
	req, err := parseRequest(bytes)
	if err != nil {
		s.log.Error("request ignored", "dir", s.dir, "cause", err)
		return false
	}
	req.slot = place
	if err := s.handle(work, &req); err != nil {
		s.log.Error("answer refused by the kernel", "dir", s.dir, "opcode", req.Opcode, "cause", err)
	}
	return req.slot == nil
}

// inbox reads requests, one after the other.
type inbox struct {
	server *Server
	into   [2][]byte // a slot, and what has no place in it
	n      int
	err    error
	read   func(fd uintptr) bool
}

func (s *Server) inbox() *inbox {
	i := &inbox{server: s, into: [2][]byte{1: make([]byte, requestSize)}}
	i.read = func(fd uintptr) bool {
		i.n, i.err = unix.Readv(int(fd), i.into[:])
		return i.err != unix.EAGAIN
	}
	return i
}

// receive reads one request, its beginning into place. The bytes are good until
// the next one.
func (i *inbox) receive(place slot) ([]byte, error) {
	i.into[0] = place
	err := i.server.raw.Read(i.read)
	switch {
	case err == nil:
		err = i.err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
	default:
		// Go's poller has seen that the connection ended, but not why. The kernel
		// says it to whoever reads.
		if i.server.raw.Control(func(fd uintptr) { i.read(fd) }) != nil {
			return nil, os.ErrClosed
		}
		err = i.err
	}
	if err != nil {
		return nil, err
	}
	rest := i.into[1][:max(0, i.n-len(place))]
	if place == nil {
		return rest, nil
	}
	return append(place[:min(i.n, len(place))], rest...), nil // if place has no room for it, a copy
}

// handle answers a request, at once if it is not a READ. A READ that is answered
// later keeps the request's slot.
func (s *Server) handle(work context.Context, req *request) error {
	switch req.Opcode {
	case opRead:
		return s.read(work, req)
	case opInterrupt:
		return s.interrupt(*req)
	case opForget, opBatchForget, opNotifyReply:
		return nil // wants no answer, and look-ups are not counted
	}
	payload, err := s.answer(*req)
	if err != nil {
		return s.send(reply(req.Unique, -int32(errno(err))))
	}
	return s.send(reply(req.Unique, 0, payload))
}

// answer answers what can be answered without waiting.
func (s *Server) answer(req request) ([]byte, error) {
	switch req.Opcode {
	case opLookup:
		return s.lookup(req)
	case opGetattr:
		return s.getattr(req)
	case opOpen:
		return s.open(req)
	case opOpendir:
		return wire(&fuse.OpenOut{}), nil
	case opReaddir:
		return s.readdir(req)
	case opStatfs:
		return wire(&fuse.StatfsOut{Bsize: pageSize, Frsize: pageSize, NameLen: 255}), nil
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
	if err != nil || req.NodeId != fuse.FUSE_ROOT_ID {
		return nil, errNoDevice
	}
	f := s.file(nodeID(id))
	if f == nil || f.id != id {
		return nil, errNoDevice
	}
	return wire(&fuse.EntryOut{NodeId: f.node, EntryValid: forever, AttrValid: forever, Attr: f.attr()}), nil
}

func (f *file) attr() fuse.Attr {
	return fuse.Attr{Ino: f.node, Size: uint64(f.size), Blocks: uint64(f.size / 512), Mode: fileMode, Nlink: 1, Blksize: pageSize}
}

func (s *Server) getattr(req request) ([]byte, error) {
	if req.NodeId == fuse.FUSE_ROOT_ID {
		return wire(&fuse.AttrOut{AttrValid: forever, Attr: fuse.Attr{Ino: fuse.FUSE_ROOT_ID, Mode: dirMode, Nlink: 2, Blksize: pageSize}}), nil
	}
	f := s.file(req.NodeId)
	if f == nil {
		return nil, errRemoved
	}
	return wire(&fuse.AttrOut{AttrValid: forever, Attr: f.attr()}), nil
}

func (s *Server) open(req request) ([]byte, error) {
	in, err := decode[fuse.OpenIn](req.bytes)
	if err != nil {
		return nil, err
	}
	if s.file(req.NodeId) == nil {
		return nil, errRemoved
	}
	if in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return nil, errReadOnly
	}
	// Direct: the tree's file system caches the pages, a second copy would be
	// wasted. No flush: there is nothing to do when a descriptor is closed.
	return wire(&fuse.OpenOut{OpenFlags: fuse.FOPEN_DIRECT_IO | fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH}), nil
}

// readdir lists the directory from an offset on: 0 the start, 1 and 2 after "."
// and "..", otherwise after the device with that node ID.
func (s *Server) readdir(req request) ([]byte, error) {
	in, err := decode[fuse.ReadIn](req.bytes)
	if err != nil {
		return nil, err
	}
	if req.NodeId != fuse.FUSE_ROOT_ID {
		return nil, errRemoved
	}
	limit := int(min(in.Size, maxRead))
	var b []byte
	ok := true
	for i, dots := range []string{".", ".."} {
		if next := uint64(i) + 1; ok && in.Offset < next {
			b, ok = appendDirent(b, limit, fuse.FUSE_ROOT_ID, next, unix.DT_DIR, dots)
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

// send writes one message to the kernel. That the kernel no longer wants it is
// no error: the process may be gone, the mount unmounted, or the request resent.
func (s *Server) send(message []byte) error {
	var failed error
	err := s.raw.Control(func(fd uintptr) { // not conn.Write: that sends one at a time
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
