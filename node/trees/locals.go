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

// locals counts the local devices on this machine, and says which of them mounts are to use.
type locals struct {
	room   Room          // nil: there are none
	making chan struct{} // has one slot: they are made one at a time

	mu       sync.Mutex         // guards what follows
	bytes    map[chunk.ID]int64 // what each takes of the disk
	mounted  map[chunk.ID]bool  // read by a tree's newest mount
	disabled map[chunk.ID]bool  // not to be used by mounts
}

func newLocals() locals {
	return locals{making: make(chan struct{}, 1),
		bytes: map[chunk.ID]int64{}, mounted: map[chunk.ID]bool{}, disabled: map[chunk.ID]bool{}}
}

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

// UsesLocal reports whether a new mount of a tree is to read its local device: the tree has one,
// and it is not disabled.
func (l *locals) UsesLocal(tree chunk.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, has := l.bytes[tree]
	return has && !l.disabled[tree]
}

// DisableLocal has new mounts of a tree not use a local device until EnableLocal.
func (l *locals) DisableLocal(tree chunk.ID) { l.mark(l.disabled, tree, true) }

// EnableLocal undoes DisableLocal.
func (l *locals) EnableLocal(tree chunk.ID) { l.mark(l.disabled, tree, false) }

// SetLocalMounted says whether the newest mount of a tree reads its local device. A mounted local
// device is not removed, unless it is damaged.
func (l *locals) SetLocalMounted(tree chunk.ID, mounted bool) { l.mark(l.mounted, tree, mounted) }

func (l *locals) mark(set map[chunk.ID]bool, tree chunk.ID, marked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if marked {
		set[tree] = true
	} else {
		delete(set, tree)
	}
}

func (l *locals) isLocalMounted(tree chunk.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mounted[tree]
}
