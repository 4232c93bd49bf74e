package trees

import (
	"maps"
	"slices"
	"sync"

	"lighter/format/chunk"
)

// Room is the source of the chunks that local devices are made of, and limits the bytes that local
// devices occupy on the disk (store/disk.Cache).
type Room interface {
	// Read fills dst with a chunk's bytes from offset on, and reports whether it could.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Reserve counts the bytes of a new file. It fails if chunks would have to be evicted to make
	// room. Count counts bytes that are on the disk already. Release undoes Reserve or Count.
	Reserve(bytes int64) error
	Count(bytes int64)
	Release(bytes int64)
	// OnShort registers yield, which is called when space is needed. yield returns how many bytes
	// it has freed.
	OnShort(yield func() int64)
}

// locals counts the local devices on this machine.
type locals struct {
	room      Room                     // nil: this store makes no local devices
	making    chan struct{}            // has one slot: local devices are made one at a time
	isMounted func(tree chunk.ID) bool // whether the newest mount of a tree reads its local device

	mu    sync.Mutex         // guards bytes
	bytes map[chunk.ID]int64 // the size of each local device on the disk
}

func newLocals() locals {
	return locals{making: make(chan struct{}, 1), isMounted: func(chunk.ID) bool { return false },
		bytes: map[chunk.ID]int64{}}
}

// AskMounted sets the function that reports whether the newest mount of a tree reads its local
// device. While that mount reads it, the local device is removed only if it or the tree's index is
// damaged. Older mounts that still read a removed local device keep its file open. AskMounted is
// called once, before the first Serve.
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
