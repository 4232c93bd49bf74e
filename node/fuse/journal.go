package fuse

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A journal is memory that outlives the server: the kernel writes each request
// that it hands over straight into a slot of it, and the slot is busy until the
// request is answered. So whoever takes the connection over finds there all that
// its predecessor had read and not answered. It is for kernels that cannot resend.
//
// A slot is busy while the length that a request begins with is not 0. There is no
// moment in which a request is neither the kernel's to send nor in a slot: the
// kernel fills the slot before it counts the request as sent, also for a process
// that is being killed. A request that was answered, but whose slot was not
// cleared any more, is answered twice; the kernel refuses the second answer.
type journal struct {
	file *os.File
	mem  []byte

	slots int32 // how many there are

	mu   sync.Mutex // guards free and next
	free []int32    // slots that were used before, the last one first: their memory is there
	next int32      // slots from here on were never used
}

const (
	// slotSize is room for the requests that matter: a READ has 80 bytes, a
	// LOOKUP of a device 105. Of a longer one only the beginning is kept. It is the same in
	// all versions, because they open each other's journals.
	slotSize = 128
	// journalSlots is how many requests can be unanswered in a new journal; memory costs only
	// what was used. It is above what the kernel sends; further requests are served, but not
	// kept.
	journalSlots = 1 << 17
)

// slot is a request's place in a journal; nil is none.
type slot []byte

func newJournal(slots int64) (*journal, error) {
	fd, err := unix.MemfdCreate("lighter-journal", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a journal of requests: %w", err)
	}
	file := os.NewFile(uintptr(fd), "journal")
	err = file.Truncate(slots * slotSize)
	if err == nil { // else whoever has it could cut it, and its reader would crash
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a journal of requests: %w", err), file.Close())
	}
	return openJournal(file)
}

// openJournal opens what newJournal has made, in any process and of any version. It takes file
// over. The error wraps errors.ErrUnsupported if that is no journal.
func openJournal(file *os.File) (*journal, error) {
	info, err := file.Stat()
	var mem []byte
	switch {
	case err != nil:
	case info.Size() == 0 || info.Size()%slotSize != 0 || info.Size()/slotSize > math.MaxInt32:
		err = fmt.Errorf("%w: its size of %d bytes is not one of slots of %d", errors.ErrUnsupported, info.Size(), slotSize)
	default:
		mem, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a journal of requests: %w", err), file.Close())
	}
	return &journal{file: file, mem: mem, slots: int32(len(mem) / slotSize)}, nil
}

// close lets go of the memory, not of what is in it.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mem == nil {
		return nil
	}
	err := unix.Munmap(j.mem)
	j.mem, j.free = nil, nil
	return err
}

func (j *journal) slot(i int32) slot {
	return slot(j.mem[int(i)*slotSize : (int(i)+1)*slotSize : (int(i)+1)*slotSize])
}

// busy returns the slots of a predecessor that are busy, and makes the others free.
func (j *journal) busy() ([]slot, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The lowest slots are used first; those behind a hole never were.
	used, err := unix.Seek(int(j.file.Fd()), 0, unix.SEEK_HOLE)
	if err != nil {
		return nil, fmt.Errorf("read the journal of requests: %w", err)
	}
	j.next = int32(used / slotSize)
	var busy []slot
	for i := range j.next {
		if s := j.slot(i); s.length() != 0 {
			busy = append(busy, s)
		} else {
			j.free = append(j.free, i)
		}
	}
	return busy, nil
}

// take returns a slot for the next request, or nil if there is none.
func (j *journal) take() slot {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mem == nil {
		return nil
	}
	if n := len(j.free); n > 0 {
		i := j.free[n-1]
		j.free = j.free[:n-1]
		return j.slot(i)
	}
	if j.next == j.slots {
		return nil
	}
	j.next++
	return j.slot(j.next - 1)
}

// give takes back the slot of a request that was answered.
func (j *journal) give(s slot) {
	if s == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mem == nil {
		return
	}
	s.clear()
	offset := uintptr(unsafe.Pointer(unsafe.SliceData(s))) - uintptr(unsafe.Pointer(unsafe.SliceData(j.mem)))
	j.free = append(j.free, int32(offset/slotSize))
}

func (s slot) head() *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(s))) }

func (s slot) length() uint32 { return atomic.LoadUint32(s.head()) }

// clear makes a slot free. It also makes sure that its memory is there, without
// which the kernel could not fill it for a process that is being killed.
func (s slot) clear() {
	if s != nil {
		atomic.StoreUint32(s.head(), 0)
	}
}

// serveJournal serves what a predecessor had read and not answered. Interrupts come
// last: they are about the others.
func (s *Server) serveJournal(work context.Context) error {
	busy, err := s.journal.busy()
	if err != nil {
		return err
	}
	var last []slot
	for _, place := range busy {
		if header, err := decode[fuse.InHeader](place); err == nil && header.Opcode == opInterrupt {
			last = append(last, place)
			continue
		}
		s.serveKept(work, place)
	}
	for _, place := range last {
		s.serveKept(work, place)
	}
	return nil
}

func (s *Server) serveKept(work context.Context, place slot) {
	bytes := bytes.Clone(place)
	if n := place.length(); n > slotSize {
		// A name too long for any device. What was cut off is not looked at.
		bytes[slotSize-1] = 0
		binary.NativeEndian.PutUint32(bytes, slotSize)
	} else {
		bytes = bytes[:n]
	}
	if !s.serveOne(work, bytes, place) {
		s.journal.give(place)
	}
}
