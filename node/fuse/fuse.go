// Package fuse serves devices to the kernel, as the files of a FUSE mount of its own. Each read is
// answered whole or with an error. Reads of one device do not delay those of another, and no read
// hangs forever.
//
// It is not a file system for users. Containers get names, permissions and everything else from a
// tree's metadata image, and only the kernel opens the files here. The package knows no chunks, cache
// or hub: a Reader has the bytes.
//
// The Server speaks the kernel's FUSE protocol (include/uapi/linux/fuse.h) itself. It keeps no state
// that the kernel refers to: a device's node ID is derived from its tree ID, file handles and
// generations are 0, and look-ups are not counted. So every process that holds the connection gives
// the same answers, and a process that never saw the connection's INIT can continue it (Adopt).
// Read serve.go first (how requests arrive), then read.go (how a READ is answered) and limit.go
// (when it begins).
//
// Hazards:
//   - The kernel treats the missing end of a short answer as zeros.
//   - A process that waits for a read through a tree can be killed, but the read continues: the
//     kernel sends no INTERRUPT for it. It does for reads of the device file itself.
//   - A device stays open as long as any mount namespace has a copy of its tree's mount. Until then
//     the directory of devices cannot be unmounted.
//   - The serving process must not open a device with os.Open, map a file of a tree, or run a program
//     from one. In these places Go waits for the kernel, which waits for this process, and the
//     garbage collector cannot run. System calls of golang.org/x/sys/unix are safe.
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
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Reader has the bytes of one device. It is safe for concurrent use.
type Reader interface {
	// ReadAt fills dst with the bytes from off on, or returns an error. It never fills less: the
	// kernel would treat the rest as zeros. missed is how many of the bytes were not on this machine.
	// The error wraps ErrIndex if the device's own files cannot be read.
	//
	// ReadAt returns soon after ctx is done, and does not touch dst afterwards. dst takes memory only
	// once it is written, so a Reader that has to wait does so before it writes.
	ReadAt(ctx context.Context, dst []byte, off int64) (missed int64, err error)
}

// State is what a server must know about a connection that another one opened,
// besides its descriptor. It is the same for the connection's whole life and
// can be stored as JSON.
type State struct {
	// Minor is the version of the protocol (7.Minor) that the kernel speaks.
	Minor uint32 `json:"minor"`
	// Flags are the features that both sides have (fuse.CAP_*).
	Flags uint64 `json:"flags"`
	// MaxPages is the size of the largest read, in pages.
	MaxPages uint16 `json:"maxPages"`
}

// maxRead returns the size of the largest read, in bytes. On a kernel with pages of 64 KiB it is
// 16 MiB if an older version opened the connection.
func (s State) maxRead() int { return int(s.MaxPages) * os.Getpagesize() }

// Resends tells whether the kernel sends the requests again that a server has read
// and not answered, when its successor asks for it.
func (s State) Resends() bool { return s.Flags&fuse.CAP_HAS_RESEND != 0 }

// Server serves one FUSE mount: a flat directory with one read-only file a
// device, named by the tree ID. It is safe for concurrent use.
type Server struct {
	conn  *os.File // /dev/fuse
	raw   syscall.RawConn
	dir   string
	state State
	log   *slog.Logger

	deadline time.Duration // readDeadline, but in tests

	buffers buffers
	counters
	control *control // nil if it cannot be had
	window  *window
	journal *journal // nil if the kernel can resend
	resume  bool     // what is in the journal is to be served

	mu      sync.Mutex       // guards what follows, and what changes in files and reads
	files   map[uint64]*file // by node ID
	reads   map[uint64]*read // unanswered, by the request's unique number
	limits  limits
	stall   stall
	served  bool // Serve was called
	leaving bool // no more requests are taken
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
	queue      queue
	complained time.Time // when a failed read was last logged
}

func newServer(conn *os.File, journal *journal, dir string, state State, log *slog.Logger) (*Server, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("use the FUSE connection: %w", err)
	}
	control, err := openControl(dir)
	if err != nil {
		log.Info("the metrics do not say how many reads wait in the kernel", "cause", err)
	}
	return &Server{conn: conn, control: control, window: newWindow(control), raw: raw, dir: dir, state: state, log: log, journal: journal, deadline: readDeadline,
		files: map[uint64]*file{}, reads: map[uint64]*read{}, limits: newLimits(),
		buffers: buffers{room: state.maxRead()}}, nil
}

// Adopt makes a server for a connection that another server (of any process)
// opened and no longer serves, and for what Kept has returned there. It takes kept
// over. The devices have to be added before Serve; Resend then brings the requests
// that the other one left unanswered.
//
// The error wraps errors.ErrUnsupported if these could not be brought.
func Adopt(kept []*os.File, dir string, state State, log *slog.Logger) (*Server, error) {
	defer func() {
		for _, file := range kept {
			file.Close()
		}
	}()
	if len(kept) == 0 || len(kept) == 1 && !state.Resends() {
		return nil, fmt.Errorf("adopt the FUSE connection of %s: %w: the kernel cannot resend what was read from it, and there is no journal", dir, errors.ErrUnsupported)
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

// duplicate gives a descriptor that Go's poller watches, whatever conn is: so a
// read of it can be called off.
func duplicate(conn *os.File) (*os.File, error) {
	raw, err := conn.SyscallConn()
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
	return os.NewFile(uintptr(own), conn.Name()), nil
}

// State returns what a successor must know.
func (s *Server) State() State { return s.state }

// Kept returns what a successor needs besides State, and what keeps the mount
// alive when this process dies: a descriptor of the connection and, if the kernel
// cannot resend, of the journal. The caller closes them.
func (s *Server) Kept() ([]*os.File, error) {
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
			return nil, fmt.Errorf("duplicate the FUSE connection of %s: %w", s.dir, err)
		}
		kept = append(kept, own)
	}
	return kept, nil
}

// nodeID derives a device's node ID from its tree ID: bit 62, so that it is no
// root and no end of a directory, and the first 62 bits of the tree ID.
func nodeID(id chunk.ID) uint64 {
	return 1<<62 | binary.BigEndian.Uint64(id[:])>>2
}

// Add puts a device of size bytes (a multiple of 4096) into the directory and
// returns its path.
func (s *Server) Add(id chunk.ID, size int64, reader Reader) (path string, err error) {
	if size < 0 || size%pageSize != 0 {
		return "", fmt.Errorf("add device %s: its size of %d bytes is not a multiple of %d", id.Short(), size, pageSize)
	}
	f := &file{name: id.String(), id: id, node: nodeID(id), size: size, reader: reader}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.files[f.node]; other != nil {
		return "", fmt.Errorf("add device %s: the node ID is taken by %s", id.Short(), other.id)
	}
	s.files[f.node] = f
	return filepath.Join(s.dir, f.name), nil
}

// removeTimeout bounds how long Remove waits for a Reader to return.
const removeTimeout = 10 * time.Second

// Remove takes a device out of the directory. Reads of it that are in work are
// called off and fail, as do all reads from then on; a process that has the
// file open can read on only after the device is added again. When Remove
// returns nil, no ReadAt of the device runs any more. Removing what is not
// there is no error.
func (s *Server) Remove(id chunk.ID) error {
	s.mu.Lock()
	f := s.files[nodeID(id)]
	if f == nil || f.id != id {
		s.mu.Unlock()
		return nil
	}
	delete(s.files, f.node)
	serving := s.served && !s.leaving
	s.mu.Unlock()
	s.callOff(errRemoved, func(other *file) bool { return other == f })
	if serving { // otherwise the kernel may wait for an answer that does not come
		s.forgetName(f.name)
	}
	if !s.await(removeTimeout, func() bool { return f.queue.inWork == 0 }) {
		return fmt.Errorf("remove device %s: its reader still runs, %v after it was told to stop", id.Short(), removeTimeout)
	}
	return nil
}

// CallOff fails the reads of a device that are not answered yet. It is for whoever
// knows that nobody waits for them but the kernel.
func (s *Server) CallOff(id chunk.ID) {
	s.callOff(errRemoved, func(f *file) bool { return f.id == id })
}

// Busy tells whether a read of a device is in work or waits.
func (s *Server) Busy(id chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[nodeID(id)]
	return f != nil && f.id == id && (f.queue.inWork > 0 || f.queue.waiting.Len() > 0)
}

// forgetName makes the kernel drop a name that it has cached. It only saves
// memory: a name whose device is gone leads to ESTALE, and a new look-up.
func (s *Server) forgetName(name string) {
	out := fuse.NotifyInvalEntryOut{Parent: fuse.FUSE_ROOT_ID, NameLen: uint32(len(name))}
	err := s.send(reply(0, -fuse.NOTIFY_INVAL_ENTRY, wire(&out), []byte(name+"\x00")))
	if err != nil {
		s.log.Debug("the kernel keeps the name of a removed device", "device", name, "cause", err)
	}
}

// Resend brings all requests that were read from the connection and not answered:
// the kernel sends them again (Linux 6.9), and a predecessor's come that way; its
// own the server tells from new ones. Where the kernel cannot, Serve begins with
// those in the journal. So it is called before Serve.
func (s *Server) Resend() error {
	if s.journal != nil {
		s.resume = true
		return nil
	}
	if err := s.send(reply(0, -fuse.NOTIFY_RESEND)); err != nil {
		return fmt.Errorf("resend the requests of %s: %w", s.dir, err)
	}
	return nil
}

// await waits until ok, which is called with mu held, or until timeout.
func (s *Server) await(timeout time.Duration, ok func() bool) bool {
	const step = 5 * time.Millisecond // only reads that are being called off are waited for
	for end := time.Now().Add(timeout); ; time.Sleep(step) {
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done || time.Now().After(end) {
			return done
		}
	}
}

// list returns the files in the order of their node IDs, from one after node on.
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

func (s *Server) file(node uint64) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[node]
}
