package fuse

import (
	"sync"

	"golang.org/x/sys/unix"
)

// buffer has space for the largest answer. The data starts on a page, because the kernel copies an
// answer page by page and needs twice as many steps for unaligned data. The header is right before
// the data, so that one write sends both.
//
// A buffer is mapped memory outside of Go's heap, and each page takes memory only once it is
// written. So a read that waits for the network with an untouched buffer takes no memory.
type buffer []byte

func newBuffer(size int) (buffer, error) {
	return unix.Mmap(-1, 0, pageSize+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// data returns the space for size bytes of data.
func (b buffer) data(size int) []byte { return b[pageSize : pageSize+size : pageSize+size] }

// message returns the space for the header and size bytes of data.
func (b buffer) message(size int) []byte { return b[pageSize-outHeaderSize : pageSize+size] }

func (b buffer) free() error { return unix.Munmap(b) }

// bufferPool keeps a few unused buffers for the next reads. The buffer that was put last is
// returned first, because it is probably still in the processor's cache. The callers bound the
// number of buffers in use.
type bufferPool struct {
	size  int        // bytes of data in each buffer
	mu    sync.Mutex // guards spare
	spare []buffer
}

func (p *bufferPool) get() (buffer, error) {
	p.mu.Lock()
	if n := len(p.spare); n > 0 {
		defer p.mu.Unlock()
		b := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return b, nil
	}
	p.mu.Unlock()
	return newBuffer(p.size)
}

func (p *bufferPool) put(b buffer) error {
	p.mu.Lock()
	if len(p.spare) < spareBuffers {
		defer p.mu.Unlock()
		p.spare = append(p.spare, b)
		return nil
	}
	p.mu.Unlock()
	return b.free()
}

// freeSpare frees the unused buffers.
func (p *bufferPool) freeSpare() error {
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
