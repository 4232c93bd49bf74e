// Package fuse serves devices to the kernel, as the files of a FUSE mount of its own. A page fault
// of a container arrives here as a READ of a device, and a Reader (package device) returns its
// bytes. Each read is answered completely, or with an error. Reads of one device do not delay those
// of another, and no read hangs forever.
//
// The mount is not for users. Containers get names, permissions and everything else from a tree's
// metadata image, and only the kernel opens the files of the mount. The package does not know where
// bytes come from: a Reader provides them.
//
// The Server speaks the kernel's FUSE protocol (include/uapi/linux/fuse.h) itself. It keeps no
// state that the kernel refers to: a device's node ID is derived from its tree ID, file handles and
// generations are 0, and lookups are not counted. So every process that holds the connection gives
// the same answers, and a process that never saw the connection's INIT can continue it (Adopt).
//
// The package is large because one Server follows each request from the connection to its answer:
// it receives, journals, admits, bounds, cancels and answers it. These steps change the state of
// the same reads under one mutex. Parts with a state of their own are types of their own: journal,
// limits, bufferPool, window, control.
//
// Read serve.go first (how requests arrive), then read.go (how a READ is answered) and limit.go
// (when it begins).
//
// Hazards:
//   - The kernel treats the missing end of a short answer as zeros.
//   - A process that waits for a read through a tree can be killed, but the read continues: the
//     kernel sends INTERRUPT only for reads of the device file itself, and for any signal.
//   - A device stays open as long as any mount namespace has a copy of its tree's mount. While a
//     device is open, the directory of devices cannot be unmounted.
//   - The serving process must not open a device with os.Open, map a file of a tree, or run a
//     program from a tree. Each of these makes Go wait for the kernel, which waits for this
//     process, and the garbage collector cannot run meanwhile. System calls of
//     golang.org/x/sys/unix are safe.
package fuse

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Reader provides the bytes of one device. It is safe for concurrent use.
type Reader interface {
	// ReadAt fills dst with the bytes from off on, or returns an error. It never fills less: the
	// kernel would treat the rest as zeros. missed is the number of these bytes that were not on
	// this machine. The error wraps ErrIndex if the device's own files cannot be read.
	//
	// ReadAt returns soon after ctx is done, and does not use dst afterwards. dst takes memory only
	// once it is written, so a Reader that has to wait for bytes waits before it writes to dst.
	ReadAt(ctx context.Context, dst []byte, off int64) (missed int64, err error)
}

// State describes a connection for a server that did not open the connection. Such a server also
// needs the connection's descriptor. The State stays the same as long as the connection exists, and
// can be stored as JSON.
type State struct {
	// Minor is the version of the protocol (7.Minor) that the kernel speaks.
	Minor uint32 `json:"minor"`
	// Flags are the features of both sides (CAP_* of go-fuse).
	Flags uint64 `json:"flags"`
	// MaxPages is the size of the largest read, in pages.
	MaxPages uint16 `json:"maxPages"`
}

// maxRead returns the size of the largest read, in bytes: mostly 1 MiB. It is 32 pages without
// CAP_MAX_PAGES. It is 16 MiB if the kernel has pages of 64 KiB and an older version of Lighter
// opened the connection: that version always asked for 256 pages.
func (s State) maxRead() int { return int(s.MaxPages) * os.Getpagesize() }

// Resends reports whether the kernel can resend the requests that a server has received and not
// answered.
func (s State) Resends() bool { return s.Flags&gofuse.CAP_HAS_RESEND != 0 }

// Server serves one FUSE mount: a flat directory with a read-only file for each device, named by
// its tree ID. It is safe for concurrent use.
type Server struct {
	conn  *os.File // /dev/fuse
	raw   syscall.RawConn
	dir   string
	state State
	log   *slog.Logger

	deadline time.Duration // readDeadline; shorter in tests

	buffers bufferPool
	counters
	control *control // nil: not available
	window  *window
	journal *journal // nil: the kernel can resend
	resume  bool     // Serve begins with the requests in the journal

	mu       sync.Mutex       // guards what follows, and the fields of files and reads that change
	files    map[uint64]*file // by node ID
	reads    map[uint64]*read // unanswered, by the request's unique number
	limits   limits
	stall    stall
	served   bool // Serve was called
	stopping bool // no more requests are received

	unmounting atomic.Bool // Unmount runs, or has succeeded
}

// file is one device in the directory.
type file struct {
	name   string
	id     chunk.ID
	node   uint64
	size   int64 // in bytes
	reader Reader
	fileCounters

	// The server's mu guards what follows.
	queue     queue
	logged    time.Time // when a failed read of the device was last logged
	forgotten bool      // the kernel has forgotten the file since IsOpen asked
}

func newServer(conn *os.File, journal *journal, dir string, state State, log *slog.Logger) (*Server, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use the FUSE connection: %w", err)
	}
	control, err := openControl(dir)
	if err != nil {
		log.Warn("no FUSE control file system: requests in the kernel are neither counted nor bounded", "err", err)
	}
	return &Server{conn: conn, raw: raw, dir: dir, state: state, log: log, deadline: readDeadline,
		buffers: bufferPool{size: state.maxRead()}, control: control, window: newWindow(control), journal: journal,
		files: map[uint64]*file{}, reads: map[uint64]*read{}, limits: newLimits()}, nil
}

// Adopt returns a server for a connection that another server, in this or another process, opened
// and no longer serves. kept are the files that the other server's Descriptors returned; Adopt
// closes them. Devices have to be added before Serve is called. Resend makes the server answer the
// requests that the other server left unanswered.
//
// The error wraps errors.ErrUnsupported if kept has no descriptor of the connection, or if the
// kernel cannot resend requests and kept has no journal.
func Adopt(kept []*os.File, dir string, state State, log *slog.Logger) (*Server, error) {
	defer func() {
		for _, file := range kept {
			file.Close()
		}
	}()
	if len(kept) == 0 {
		return nil, fmt.Errorf("adopt the FUSE connection of %s: %w: no descriptor of it was kept",
			dir, errors.ErrUnsupported)
	}
	if len(kept) == 1 && !state.Resends() {
		return nil, fmt.Errorf("adopt the FUSE connection of %s: %w: "+
			"the kernel cannot resend requests, and there is no journal", dir, errors.ErrUnsupported)
	}
	conn, err := duplicate(kept[0])
	if err != nil {
		return nil, fmt.Errorf("adopt the FUSE connection of %s: %w", dir, err)
	}
	var j *journal
	if !state.Resends() {
		file, err := duplicate(kept[1])
		if err == nil {
			j, err = openJournal(file)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("adopt the FUSE connection of %s: %w", dir, err), conn.Close())
		}
	}
	return newServer(conn, j, dir, state, log)
}

// duplicate returns a duplicate of a file's descriptor. Go's poller watches the duplicate, even if
// it does not watch file, so a read of the duplicate can be cancelled.
func duplicate(file *os.File) (*os.File, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var own int
	var failed error
	err = raw.Control(func(fd uintptr) {
		if own, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3); failed == nil {
			failed = unix.SetNonblock(own, true)
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), file.Name()), nil
}

// State returns what a successor must know of the connection.
func (s *Server) State() State { return s.state }

// Descriptors returns what a successor needs besides State: a descriptor of the connection and, if
// the kernel cannot resend, one of the journal. A process that holds them keeps the mount alive.
// The caller closes them.
func (s *Server) Descriptors() ([]*os.File, error) {
	from := []*os.File{s.conn}
	if s.journal != nil {
		from = append(from, s.journal.file)
	}
	var kept []*os.File
	for _, file := range from {
		own, err := duplicate(file)
		if err != nil {
			for _, file := range kept {
				file.Close()
			}
			return nil, fmt.Errorf("duplicate %s for the FUSE connection of %s: %w", file.Name(), s.dir, err)
		}
		kept = append(kept, own)
	}
	return kept, nil
}

// nodeID derives a device's node ID from its tree ID: the first 62 bits of the tree ID, and bit 62.
// Because of bit 62, a device's node ID differs from the root's node ID, which is 1. readdir uses
// node IDs as offsets, so a device's node ID must also differ from the offsets after "." and "..",
// which are 1 and 2.
func nodeID(id chunk.ID) uint64 {
	return 1<<62 | binary.BigEndian.Uint64(id[:])>>2
}

// Add adds a device of size bytes, a multiple of 4096, and returns its path.
func (s *Server) Add(id chunk.ID, size int64, reader Reader) (path string, err error) {
	if size < 0 || size%pageSize != 0 {
		return "", fmt.Errorf("add device %s: its size of %d bytes is not a multiple of %d", id.Short(), size, pageSize)
	}
	f := &file{name: id.String(), id: id, node: nodeID(id), size: size, reader: reader}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.files[f.node]; other != nil {
		return "", fmt.Errorf("add device %s: %s has the same node ID", id.Short(), other.id)
	}
	s.files[f.node] = f
	return filepath.Join(s.dir, f.name), nil
}

// Remove removes a device. The device's unanswered reads and all later ones fail. A process that
// has the file open can read it again only after the device was added again. When Remove returns
// nil, no ReadAt of the device runs. Remove does nothing if the server does not have the device.
func (s *Server) Remove(id chunk.ID) error {
	f := s.device(id)
	if f == nil {
		return nil
	}
	s.mu.Lock()
	delete(s.files, f.node)
	serving := s.served && !s.stopping
	s.mu.Unlock()
	s.cancel(errRemoved, func(other *file) bool { return other == f })
	if serving { // the notification may wait in the kernel for a lookup that this server has to answer
		s.forgetName(f.name)
	}
	if !s.await(removeTimeout, func() bool { return f.queue.active == 0 }) {
		return fmt.Errorf("remove device %s: its reader still runs %v after it was cancelled",
			id.Short(), removeTimeout)
	}
	return nil
}

// Cancel fails the unanswered reads of a device. The server still has the device afterwards. The
// caller makes sure that no process waits for these reads.
func (s *Server) Cancel(id chunk.ID) {
	s.cancel(errRemoved, func(f *file) bool { return f.id == id })
}

// Busy reports whether a device has unanswered reads.
func (s *Server) Busy(id chunk.ID) bool {
	f := s.device(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return f != nil && (f.queue.active > 0 || f.queue.queued.Len() > 0)
}

// forgetName makes the kernel drop a cached name. It only saves memory: the name of a removed
// device leads to ESTALE, and a new lookup.
func (s *Server) forgetName(name string) {
	out := gofuse.NotifyInvalEntryOut{Parent: gofuse.FUSE_ROOT_ID, NameLen: uint32(len(name))}
	err := s.send(reply(0, -gofuse.NOTIFY_INVAL_ENTRY, wire(&out), []byte(name+"\x00")))
	if err != nil {
		s.log.Debug("name of a removed device stays cached in the kernel", "tree", name, "err", err)
	}
}

// Resend makes the server answer the requests that a predecessor received and did not answer. It
// must be called before Serve. From Linux 6.9 on, the kernel resends the requests, and the server
// ignores those that it is answering already. For older kernels, Serve begins with the requests in
// the journal.
func (s *Server) Resend() error {
	if s.journal != nil {
		s.resume = true
		return nil
	}
	if err := s.send(reply(0, -gofuse.NOTIFY_RESEND)); err != nil {
		return fmt.Errorf("resend the requests of %s: %w", s.dir, err)
	}
	return nil
}

// await waits until ok returns true, for timeout at most, and returns what ok returned last. It
// calls ok with mu held.
func (s *Server) await(timeout time.Duration, ok func() bool) bool {
	for end := time.Now().Add(timeout); ; time.Sleep(awaitStep) {
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done || time.Now().After(end) {
			return done
		}
	}
}

// list returns the files with node IDs above node, in the order of their node IDs.
func (s *Server) list(node uint64) []*file {
	s.mu.Lock()
	defer s.mu.Unlock()
	var files []*file
	for _, f := range s.files {
		if f.node > node {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b *file) int { return cmp.Compare(a.node, b.node) })
	return files
}

// device returns the file of a device, or nil.
func (s *Server) device(id chunk.ID) *file {
	if f := s.file(nodeID(id)); f != nil && f.id == id {
		return f
	}
	return nil
}

func (s *Server) file(node uint64) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[node]
}
