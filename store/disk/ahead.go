package disk

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Load reads those of the chunks that are cached from the disk into the kernel's page cache. It
// returns when it has read them, or when the disk does not answer. It is for a caller that is about
// to read all of the chunks: it requests all of them before it waits for the first. It verifies
// nothing.
func (c *Cache) Load(refs []chunk.Ref) {
	if c.reads.isOpen() {
		return
	}
	places := make([]place, len(refs))
	c.mu.RLock()
	for i, ref := range refs {
		places[i], _ = c.index.at(keyOf(ref.ID))
	}
	c.mu.RUnlock()
	var abandoned atomic.Int64
	err := c.reads.do(func() {
		for i, p := range places {
			if p.segment != nil {
				p.segment.request(p.offset, recordSize(refs[i].Length))
			}
		}
	}, &abandoned)
	for i, p := range places {
		if err == nil && p.segment != nil {
			err = p.segment.await(p.offset, recordSize(refs[i].Length))
		}
	}
	if err != nil {
		c.unanswered("read ahead", c.dir)
	}
}

// request makes the kernel begin to read a record of that size. The kernel may ignore it.
func (s *segment) request(offset uint32, size int64) {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), int64(offset), size, unix.FADV_WILLNEED) })
}

// await waits until the end of a record is in memory. It returns errHangs or nil: readers find
// other errors themselves.
func (s *segment) await(offset uint32, size int64) error {
	return s.reads.do(func() {
		_ = s.raw.Control(func(fd uintptr) { _, _ = preadFull(int(fd), make([]byte, 1), int64(offset)+size-1) })
	}, &s.abandoned)
}
