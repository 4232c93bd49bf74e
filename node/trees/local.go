package trees

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/format/chunk"
)

// Room has the chunks that local devices are made of, and a limit for the bytes on the disk that
// the local devices count against (store/disk.Cache).
type Room interface {
	// Read fills dst with a chunk's bytes from offset on, and reports whether it has them.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Take reserves bytes, unless something would have to be evicted for them. Hold counts bytes
	// that exist already. Give undoes either.
	Take(bytes int64) error
	Hold(bytes int64)
	Give(bytes int64)
	// Beside registers yield, which is called when space is needed. It returns the bytes it freed.
	Beside(yield func() int64)
}

// A local device is a directory with a file that has the bytes of the tree's device, and another
// name of the metadata image. A mount that reads the file is known by that name.
const (
	localDir = "local"
	localNew = "local.new" // being made; removed after a crash
	localOld = "local.rm"  // being removed
)

// ErrNotCached means that a chunk of a tree is not in the cache.
var ErrNotCached = errors.New("not all of its chunks are cached")

// locals are the local devices on this machine. Store.mu guards the maps.
type locals struct {
	room     Room
	making   chan struct{}      // has one slot: they are made one at a time
	bytes    map[chunk.ID]int64 // what each takes of the disk
	mounted  map[chunk.ID]bool  // read by a tree's newest mount
	disabled map[chunk.ID]bool  // not to be used by mounts
}

func newLocals() locals {
	return locals{making: make(chan struct{}, 1),
		bytes: map[chunk.ID]int64{}, mounted: map[chunk.ID]bool{}, disabled: map[chunk.ID]bool{}}
}

// UseRoom enables local devices, and counts those on the disk. It is called once, before the
// first Serve.
func (s *Store) UseRoom(room Room) error {
	trees, err := s.List()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		s.leftovers.Remove(filepath.Join(s.dir(tree), localNew))
		s.leftovers.Remove(filepath.Join(s.dir(tree), localOld))
		var stat unix.Stat_t
		if err := unix.Stat(s.LocalDevice(tree), &stat); err != nil {
			s.leftovers.Remove(s.localDir(tree)) // useless without the device
			continue
		}
		s.countLocal(tree, stat.Blocks*512)
		room.Hold(stat.Blocks * 512)
	}
	s.locals.room = room
	room.Beside(s.yieldLocal)
	return nil
}

func (s *Store) countLocal(tree chunk.ID, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locals.bytes[tree] = size
}

// HasLocal reports whether a tree has a local device, and its size on the disk.
func (s *Store) HasLocal(tree chunk.ID) (bytes int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes, ok = s.locals.bytes[tree]
	return bytes, ok
}

// UsesLocal reports whether a new mount of a tree is to read its local device: the tree has one,
// and it is not disabled.
func (s *Store) UsesLocal(tree chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.locals.bytes[tree]
	return has && !s.locals.disabled[tree]
}

// DisableLocal has new mounts of a tree not use a local device until EnableLocal.
func (s *Store) DisableLocal(tree chunk.ID) { s.mark(s.locals.disabled, tree, true) }

// EnableLocal undoes DisableLocal.
func (s *Store) EnableLocal(tree chunk.ID) { s.mark(s.locals.disabled, tree, false) }

// SetLocalMounted says whether the newest mount of a tree reads its local device. A mounted local
// device is not removed, unless it is damaged.
func (s *Store) SetLocalMounted(tree chunk.ID, mounted bool) { s.mark(s.locals.mounted, tree, mounted) }

func (s *Store) mark(set map[chunk.ID]bool, tree chunk.ID, marked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if marked {
		set[tree] = true
	} else {
		delete(set, tree)
	}
}

func (s *Store) isLocalMounted(tree chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.locals.mounted[tree]
}

// MakeLocal makes the local device of a tree from cached chunks, unless the tree has one. Later
// mounts read it. Each chunk is verified before it is written. All chunks are verified again from
// the disk before the file gets its name, because the kernel reads it unverified. If MakeLocal
// fails, it leaves nothing behind.
func (s *Store) MakeLocal(ctx context.Context, tree chunk.ID) error {
	if _, ok := s.HasLocal(tree); ok || s.locals.room == nil {
		return nil
	}
	select {
	case s.locals.making <- struct{}{}:
		defer func() { <-s.locals.making }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := s.makeLocal(ctx, tree); err != nil {
		return fmt.Errorf("make the local device of tree %s: %w", tree.Short(), err)
	}
	return nil
}

func (s *Store) makeLocal(ctx context.Context, tree chunk.ID) (err error) {
	extents, file, err := s.openMap(tree)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := sizeOnDisk(ctx, extents)
	if err != nil {
		return err
	}
	if err := s.locals.room.Take(size); err != nil {
		return err
	}
	fresh := filepath.Join(s.dir(tree), localNew)
	defer func() {
		if err != nil {
			s.locals.room.Give(size)
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	device := filepath.Join(fresh, "device")
	if err := fillLocal(ctx, device, extents, s.locals.room); err != nil {
		return err
	}
	if err := verifyLocal(ctx, device, extents, localRate); err != nil {
		return err
	}
	return s.publishLocal(tree, fresh, size)
}

// publishLocal gives a local device its name.
func (s *Store) publishLocal(tree chunk.ID, fresh string, size int64) error {
	defer s.Lock(tree)() // the tree may be removed, or its index be replaced
	if err := os.Link(s.Metadata(tree), filepath.Join(fresh, "metadata")); err != nil {
		return err
	}
	if err := durable.Publish(fresh, s.localDir(tree)); err != nil {
		return err
	}
	s.countLocal(tree, size)
	return nil
}

// forgetLocal stops counting the local device of a tree, which was removed.
func (s *Store) forgetLocal(tree chunk.ID) (freed int64) {
	s.mu.Lock()
	freed = s.locals.bytes[tree]
	delete(s.locals.bytes, tree)
	s.mu.Unlock()
	if freed > 0 {
		s.locals.room.Give(freed)
	}
	return freed
}

// DiscardLocal removes the local device of a tree and returns how many bytes that freed. A mount
// that reads it keeps it, and its space on the disk. The caller holds the tree's lock.
func (s *Store) DiscardLocal(tree chunk.ID) (freed int64, err error) {
	if err := durable.Discard(s.localDir(tree), filepath.Join(s.dir(tree), localOld)); err != nil {
		return 0, fmt.Errorf("remove the local device of tree %s: %w", tree.Short(), err)
	}
	return s.forgetLocal(tree), nil
}

// discardUnused removes the local device of a tree, if there is one that is not mounted. The
// caller holds the tree's lock.
func (s *Store) discardUnused(tree chunk.ID) (freed int64) {
	if _, has := s.HasLocal(tree); !has || s.isLocalMounted(tree) {
		return 0
	}
	freed, err := s.DiscardLocal(tree)
	if err != nil {
		s.log.Warn("cannot remove a local device", "tree", tree.Short(), "err", err)
	}
	return freed
}

func (s *Store) allLocals() []chunk.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.locals.bytes))
}

// yieldLocal removes one local device that is not mounted, and returns how many bytes that freed.
// It skips trees whose lock is held.
func (s *Store) yieldLocal() int64 {
	for _, tree := range s.allLocals() {
		unlock, free := s.TryLock(tree)
		if !free {
			continue
		}
		freed := s.discardUnused(tree)
		unlock()
		if freed > 0 {
			s.log.Info("removed a local device to free space", "tree", tree.Short(), "bytes", freed)
			return freed
		}
	}
	return 0
}

// DropLocal removes the local device of a tree, if there is one that is not mounted, and returns
// how many bytes that freed.
func (s *Store) DropLocal(tree chunk.ID) (freed int64) {
	defer s.Lock(tree)()
	return s.discardUnused(tree)
}

// DropLocals removes the local devices that are not mounted.
func (s *Store) DropLocals() {
	for _, tree := range s.allLocals() {
		s.DropLocal(tree)
	}
}
