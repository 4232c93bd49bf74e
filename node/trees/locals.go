package trees

import (
	"maps"
	"slices"
	"sync"

	"lighter/format/chunk"
)

// Room has the chunks that local devices are made of, and a limit for the bytes on the disk that
// the local devices count against (store/disk.Cache).
type Room interface {
	// Read fills dst with a chunk's bytes from offset on, and reports whether it has them.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Reserve counts bytes of a new file, unless something would have to be evicted for them.
	// Count counts bytes that exist already. Release undoes either.
	Reserve(bytes int64) error
	Count(bytes int64)
	Release(bytes int64)
	// OnShort registers yield, which is called when space is needed. It returns the bytes it freed.
	OnShort(yield func() int64)
}

// locals counts the local devices on this machine.
type locals struct {
	room      Room                     // nil: there are none
	making    chan struct{}            // has one slot: they are made one at a time
	isMounted func(tree chunk.ID) bool // whether the newest mount of a tree reads its local device

	mu    sync.Mutex         // guards bytes
	bytes map[chunk.ID]int64 // what each takes of the disk
}

func newLocals() locals {
	return locals{making: make(chan struct{}, 1), isMounted: func(chunk.ID) bool { return false },
		bytes: map[chunk.ID]int64{}}
}

// AskMounted sets the function that reports whether the newest mount of a tree reads its local device. A mounted
// local device is not removed, unless it is damaged. It is called once, before the first Serve.
func (l *locals) AskMounted(isMounted func(tree chunk.ID) bool) { l.isMounted = isMounted }

// countLocal adds a local device with its size on the disk.
func (l *locals) countLocal(tree chunk.ID, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes[tree] = size
}

// forgetLocal stops counting the local device of a tree, which was removed.
func (l *locals) forgetLocal(tree chunk.ID) (freed int64) {
	l.mu.Lock()
	freed = l.bytes[tree]
	delete(l.bytes, tree)
	l.mu.Unlock()
	if freed > 0 {
		l.room.Release(freed)
	}
	return freed
}

// HasLocal reports whether a tree has a local device, and its size on the disk.
func (l *locals) HasLocal(tree chunk.ID) (bytes int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, ok = l.bytes[tree]
	return bytes, ok
}

func (l *locals) allLocals() []chunk.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.bytes))
}
