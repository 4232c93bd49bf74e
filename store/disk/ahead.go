package disk

import (
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Load has the chunks read from the disk into the kernel's memory, as far as they are
// here, and returns when they are: for who will read all of them, one after the other.
// It asks for all before it waits for the first. Nothing is verified before it is read.
func (c *Cache) Load(refs []chunk.Ref) {
	if c.blindTo.Load() != 0 && c.isBlind() {
		return
	}
	places := make([]place, len(refs))
	c.mu.RLock()
	for i, ref := range refs {
		places[i], _ = c.index.at(keyOf(ref.ID))
	}
	c.mu.RUnlock()
	for i, p := range places {
		if p.segment != nil {
			p.segment.expect(p.offset, recordSize(refs[i].Length))
		}
	}
	for i, p := range places {
		if p.segment != nil {
			p.segment.await(p.offset, recordSize(refs[i].Length))
		}
	}
}

// expect has the kernel begin to read a record of that size. It is advice.
func (s *segment) expect(offset uint32, size int64) {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), int64(offset), size, unix.FADV_WILLNEED) })
}

// await waits for the record's end. What goes wrong is for who reads it.
func (s *segment) await(offset uint32, size int64) {
	_ = s.raw.Control(func(fd uintptr) { _, _ = preadFull(int(fd), make([]byte, 1), int64(offset)+size-1) })
}
