package fuse

import (
	"sync"

	"golang.org/x/sys/unix"
)

const (
	pageSize = 4096
	// maxRead is the size of the largest read that the kernel is allowed to ask
	// for, in bytes: 256 pages of 4 KiB, as kernels grant no more by themselves, or 16 of 64 KiB.
	maxRead = 1 << 20

	// spareBuffers is how many buffers are kept for the next reads.
	spareBuffers = 16
)

// buffer is room for the largest answer. The data starts on a page, because the
// kernel copies an answer page by page and takes twice as many steps for an
// unaligned one; the header stands right before it, so that one write sends
// both.
//
// It is mapped memory, outside of Go's heap, so a page of it costs nothing
// until it is written: a read that waits for the network with an untouched
// buffer takes no memory, however large it is.
type buffer []byte

func newBuffer(room int) (buffer, error) {
	return unix.Mmap(-1, 0, pageSize+room, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// data returns room for size bytes of data.
func (b buffer) data(size int) []byte { return b[pageSize : pageSize+size : pageSize+size] }

// message returns the header's place and size bytes of data.
func (b buffer) message(size int) []byte { return b[pageSize-outHeaderSize : pageSize+size] }

func (b buffer) free() error { return unix.Munmap(b) }

// buffers keeps a few buffers for the next reads. The one that was used last is
// used first: it is in the processor's cache. How many are in use is bounded by
// who takes them.
type buffers struct {
	room  int        // for data in each, in bytes
	mu    sync.Mutex // guards spare
	spare []buffer
}

func (p *buffers) take() (buffer, error) {
	p.mu.Lock()
	if n := len(p.spare); n > 0 {
		defer p.mu.Unlock()
		b := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return b, nil
	}
	p.mu.Unlock()
	return newBuffer(p.room)
}

func (p *buffers) give(b buffer) error {
	p.mu.Lock()
	if len(p.spare) < spareBuffers {
		defer p.mu.Unlock()
		p.spare = append(p.spare, b)
		return nil
	}
	p.mu.Unlock()
	return b.free()
}

// freeSpare frees the buffers that nobody uses.
func (p *buffers) freeSpare() error {
	p.mu.Lock()
	spare := p.spare
	p.spare = nil
	p.mu.Unlock()
	for _, b := range spare {
		if err := b.free(); err != nil {
			return err
		}
	}
	return nil
}
