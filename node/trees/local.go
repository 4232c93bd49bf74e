package trees

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/format/chunk"
)

// A local device is a directory with two files: the bytes of the tree's device, and a hard link to
// the metadata image. A mount whose metadata image has that second name reads the local device.
const (
	localDir = "local"
	localNew = "local.new" // being made; removed after a crash
	localOld = "local.rm"  // being removed
)

// ErrDerived means that a tree can have no local device, because chunks of it have no digests of
// their own (package layer): nothing could verify the file.
var ErrDerived = errors.New("some of its chunks have no digests of their own")

// ErrNotCached means that a chunk of a tree is not in the cache.
var ErrNotCached = errors.New("not all of its chunks are cached")

// UseRoom enables local devices, and counts those that are on the disk in room. It is called once,
// before the first Serve.
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
		room.Count(stat.Blocks * 512)
	}
	s.room = room
	room.OnShort(s.yieldLocal)
	return nil
}

// MakeLocal makes the local device of a tree from cached chunks, unless the tree has one. Later
// mounts read it. Each chunk is verified before it is written. All chunks are verified again from
// the disk before the file gets its name, because the kernel reads it unverified. If MakeLocal
// fails, it leaves nothing behind.
func (s *Store) MakeLocal(ctx context.Context, tree chunk.ID) error {
	if _, ok := s.HasLocal(tree); ok || s.room == nil {
		return nil
	}
	select {
	case s.making <- struct{}{}:
		defer func() { <-s.making }()
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
	if err := s.room.Reserve(size); err != nil {
		return err
	}
	fresh := filepath.Join(s.dir(tree), localNew)
	defer func() {
		if err != nil {
			s.room.Release(size)
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	device := filepath.Join(fresh, "device")
	if err := fillLocal(ctx, device, extents, s.room); err != nil {
		return err
	}
	if err := verifyLocal(ctx, device, extents, localRate); err != nil {
		return err
	}
	return s.publishLocal(tree, fresh, size)
}

// publishLocal moves a finished local device from fresh to its place.
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

// DiscardLocal removes the local device of a tree and returns how many bytes that freed. While a
// mount still reads the removed file, its space on the disk stays occupied. The caller holds the
// tree's lock.
func (s *Store) DiscardLocal(tree chunk.ID) (freed int64, err error) {
	if err := durable.Discard(s.localDir(tree), filepath.Join(s.dir(tree), localOld)); err != nil {
		return 0, fmt.Errorf("remove the local device of tree %s: %w", tree.Short(), err)
	}
	return s.forgetLocal(tree), nil
}

// discardUnused removes the local device of a tree, if the tree has one, and its newest mount does
// not read it. The caller holds the tree's lock.
func (s *Store) discardUnused(tree chunk.ID) (freed int64) {
	if _, has := s.HasLocal(tree); !has || s.isMounted(tree) {
		return 0
	}
	freed, err := s.DiscardLocal(tree)
	if err != nil {
		s.log.Warn("cannot remove a local device", "tree", tree.Short(), "err", err)
	}
	return freed
}

// yieldLocal removes one local device that the newest mount of its tree does not read, and returns
// how many bytes that freed. It skips trees whose lock is held.
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

// DropLocal removes the local device of a tree, if the tree has one, and its newest mount does not
// read it. It returns how many bytes that freed.
func (s *Store) DropLocal(tree chunk.ID) (freed int64) {
	defer s.Lock(tree)()
	return s.discardUnused(tree)
}

// DropLocals removes the local devices that the newest mounts of their trees do not read.
func (s *Store) DropLocals() {
	for _, tree := range s.allLocals() {
		s.DropLocal(tree)
	}
}
