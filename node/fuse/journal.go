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

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// journal is memory that outlives the server. The kernel writes the beginning of each request
// directly into a slot of the journal, and the slot is busy until the request is answered. So a
// successor finds in the journal the requests that its predecessor had received and not answered. A
// request that arrives while no slot is free is served, but a successor does not find it. A server
// has a journal only if the kernel cannot resend requests.
//
// A slot is busy while the first field of its request, the length, is not 0. The kernel fills the
// slot before it counts the request as sent, even if the process is being killed. So a request with
// a slot is never lost: until it is answered, it waits in the kernel to be sent, or is in its slot.
// If a request was answered but its slot is still busy, the successor answers it again, and the
// kernel refuses the second answer.
type journal struct {
	file *os.File
	mem  []byte

	slots int32 // number of slots

	mu   sync.Mutex // guards free and next
	free []int32    // free slots that have memory; acquire returns the last one
	next int32      // this slot and all after it were never used
}

// slot is the part of a journal with one request. A request with a nil slot is not in a journal.
type slot []byte

func newJournal(slots int64) (*journal, error) {
	fd, err := unix.MemfdCreate("lighter-journal", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a journal of requests: %w", err)
	}
	file := os.NewFile(uintptr(fd), "journal")
	err = file.Truncate(slots * slotSize)
	if err == nil { // if another process truncated the file, this process would crash
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a journal of requests: %w", err), file.Close())
	}
	return openJournal(file)
}

// openJournal opens a journal that newJournal has made in this or another process, of this or
// another version of Lighter. The journal then owns file. If openJournal fails, it closes file. The
// error wraps errors.ErrUnsupported if no journal has the file's size.
func openJournal(file *os.File) (*journal, error) {
	info, err := file.Stat()
	var mem []byte
	switch {
	case err != nil:
	case info.Size() == 0 || info.Size()%slotSize != 0 || info.Size()/slotSize > math.MaxInt32:
		err = fmt.Errorf("%w: its size is %d bytes, want 1 to %d slots of %d bytes", errors.ErrUnsupported, info.Size(),
			math.MaxInt32, slotSize)
	default:
		mem, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a journal of requests: %w", err), file.Close())
	}
	return &journal{file: file, mem: mem, slots: int32(len(mem) / slotSize)}, nil
}

// unmap frees the mapping. The file and its contents stay.
func (j *journal) unmap() error {
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

// busy returns the slots that a predecessor left busy, and makes all other slots free. It is called
// before acquire.
func (j *journal) busy() ([]slot, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// Slots are used for the first time in ascending order. So the slots from the file's first hole
	// on were never used.
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

// acquire returns a slot for the next request, or nil if no slot is free.
func (j *journal) acquire() slot {
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

// release frees the slot of an answered request.
func (j *journal) release(s slot) {
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

// clear makes a slot no longer busy. It also makes sure that the slot has memory: while this
// process is being killed, the kernel can fill the slot, but cannot allocate memory for it.
func (s slot) clear() {
	if s != nil {
		atomic.StoreUint32(s.head(), 0)
	}
}

// serveJournal serves the requests in the slots that a predecessor left busy. INTERRUPTs come last,
// because they refer to other requests.
func (s *Server) serveJournal(work context.Context) error {
	busy, err := s.journal.busy()
	if err != nil {
		return err
	}
	var interrupts []slot
	for _, kept := range busy {
		if header, err := decode[gofuse.InHeader](kept); err == nil && header.Opcode == opInterrupt {
			interrupts = append(interrupts, kept)
			continue
		}
		s.serveKept(work, kept)
	}
	for _, kept := range interrupts {
		s.serveKept(work, kept)
	}
	return nil
}

func (s *Server) serveKept(work context.Context, kept slot) {
	bytes := bytes.Clone(kept)
	if n := kept.length(); n > slotSize {
		// Of the requests that are read beyond their headers, only a LOOKUP can be that long, and
		// no device has such a long name. So the part that was cut off does not matter.
		bytes[slotSize-1] = 0
		binary.NativeEndian.PutUint32(bytes, slotSize)
	} else {
		bytes = bytes[:n]
	}
	if !s.serveOne(work, bytes, kept) {
		s.journal.release(kept)
	}
}
