package disk

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Load has the chunks read from the disk into the kernel's memory, as far as they are
// here, and returns when they are: for who will read all of them, one after the other.
// It asks for all before it waits for the first. Nothing is verified before it is read. It
// also returns when the disk does not answer.
func (c *Cache) Load(refs []chunk.Ref) {
	if c.isBlind() {
		return
	}
	places := make([]place, len(refs))
	c.mu.RLock()
	for i, ref := range refs {
		places[i], _ = c.index.at(keyOf(ref.ID))
	}
	c.mu.RUnlock()
	var all atomic.Int64
	err := c.reads.do(func() {
		for i, p := range places {
			if p.segment != nil {
				p.segment.expect(p.offset, recordSize(refs[i].Length))
			}
		}
	}, &all)
	for i, p := range places {
		if err == nil && p.segment != nil {
			err = p.segment.await(p.offset, recordSize(refs[i].Length))
		}
	}
	if err != nil {
		c.unanswered("read ahead", c.dir)
	}
}

// expect has the kernel begin to read a record of that size. It is advice.
func (s *segment) expect(offset uint32, size int64) {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), int64(offset), size, unix.FADV_WILLNEED) })
}

// await waits for the record's end, and returns errHangs or nothing. Other errors are for the
// readers.
func (s *segment) await(offset uint32, size int64) error {
	return s.reads.do(func() {
		_ = s.raw.Control(func(fd uintptr) { _, _ = preadFull(int(fd), make([]byte, 1), int64(offset)+size-1) })
	}, &s.left)
}
