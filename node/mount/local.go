package mount

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

// Room is where local devices are made of, and whose limit they count against (a
// store/disk.Cache).
type Room interface {
	// Read fills dst with the chunk's bytes from offset on and tells whether it could.
	Read(ref chunk.Ref, offset int, dst []byte) bool
	// Take counts so many bytes more of the disk, if nothing has to go for them; Hold
	// counts what is there, and Give what went.
	Take(bytes int64) error
	Hold(bytes int64)
	Give(bytes int64)
	// Beside has yield called when something has to go.
	Beside(yield func() int64)
}

// A local device is a file that holds what a tree's device does, for the kernel to
// read without the daemon. It lies in a directory of its own with another name of the
// metadata image, by which its mounts are known.
const (
	localDir = "local"
	localNew = "local.new" // being made; worth nothing after a crash
	localOld = "local.rm"  // on its way out
)

// ErrNotHere says that a chunk of a tree is not on this machine.
var ErrNotHere = errors.New("not all of its chunks are on this machine")

// locals are the local devices on this machine.
type locals struct {
	room   Room
	making chan struct{}      // one token: they are made one at a time
	bytes  map[chunk.ID]int64 // what each takes of the disk; guarded by Trees.mu
}

func (t *Trees) localDir(tree chunk.ID) string    { return filepath.Join(t.dir(tree), localDir) }
func (t *Trees) localDevice(tree chunk.ID) string { return filepath.Join(t.localDir(tree), "device") }
func (t *Trees) localMetadata(tree chunk.ID) string {
	return filepath.Join(t.localDir(tree), "metadata")
}

// isLocalSource tells whether a mount's source is that of one with a local device.
func isLocalSource(source string) bool {
	return filepath.Base(filepath.Dir(source)) == localDir
}

// UseRoom says where local devices are made of, and counts those that are there. It
// is called once, before the first Mount. Without it there are none.
func (t *Trees) UseRoom(room Room) error {
	trees, err := t.List()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		t.leftovers.Remove(filepath.Join(t.dir(tree), localNew))
		t.leftovers.Remove(filepath.Join(t.dir(tree), localOld))
		var stat unix.Stat_t
		if err := unix.Stat(t.localDevice(tree), &stat); err != nil {
			t.leftovers.Remove(t.localDir(tree)) // it is of no use
			continue
		}
		t.mu.Lock()
		t.locals.bytes[tree] = stat.Blocks * 512
		t.mu.Unlock()
		room.Hold(stat.Blocks * 512)
	}
	t.locals.room = room
	room.Beside(t.yieldLocal)
	return nil
}

// HasLocal tells whether a tree has a local device, and what that takes of the disk.
func (t *Trees) HasLocal(tree chunk.ID) (bytes int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	bytes, ok = t.locals.bytes[tree]
	return bytes, ok
}

// MakeLocal makes the local device of a tree, all of whose chunks are here, unless it
// has one: mounts from now on read it. Each chunk is verified before it is written,
// and all of them once more, from the disk, before the file gets its name: the kernel
// reads it unverified. What does not work leaves nothing behind.
func (t *Trees) MakeLocal(ctx context.Context, tree chunk.ID) error {
	if _, ok := t.HasLocal(tree); ok || t.locals.room == nil {
		return nil
	}
	select {
	case t.locals.making <- struct{}{}:
		defer func() { <-t.locals.making }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := t.makeLocal(ctx, tree); err != nil {
		return fmt.Errorf("make the local device of tree %s: %w", tree.Short(), err)
	}
	return nil
}

func (t *Trees) makeLocal(ctx context.Context, tree chunk.ID) (err error) {
	extents, file, err := t.openMap(tree)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := blocksOf(ctx, extents)
	if err != nil {
		return err
	}
	if err := t.locals.room.Take(size); err != nil {
		return err
	}
	fresh := filepath.Join(t.dir(tree), localNew)
	defer func() {
		if err != nil {
			t.locals.room.Give(size)
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	device := filepath.Join(fresh, "device")
	if err := t.fillLocal(ctx, device, extents); err != nil {
		return err
	}
	if err := verifyLocal(ctx, device, extents, localRate); err != nil {
		return err
	}
	return t.publishLocal(tree, fresh, size)
}

// publishLocal gives a local device its name.
func (t *Trees) publishLocal(tree chunk.ID, fresh string, size int64) error {
	defer t.locks.lock(tree)() // it may be removed, or fetched anew
	if err := os.Link(t.metadata(tree), filepath.Join(fresh, "metadata")); err != nil {
		return err
	}
	if err := durable.Publish(fresh, t.localDir(tree)); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.locals.bytes[tree] = size
	return nil
}

// forgetLocal stops counting the local device of a tree, which is gone.
func (t *Trees) forgetLocal(tree chunk.ID) (freed int64) {
	t.mu.Lock()
	freed = t.locals.bytes[tree]
	delete(t.locals.bytes, tree)
	t.mu.Unlock()
	if freed > 0 {
		t.locals.room.Give(freed)
	}
	return freed
}

// dropLocal removes the local device of a tree. Who has it mounted keeps it, and its
// place on the disk. The caller holds the tree's lock.
func (t *Trees) dropLocal(tree chunk.ID) (freed int64, err error) {
	if err := durable.Discard(t.localDir(tree), filepath.Join(t.dir(tree), localOld)); err != nil {
		return 0, fmt.Errorf("remove the local device of tree %s: %w", tree.Short(), err)
	}
	return t.forgetLocal(tree), nil
}

// DropLocal removes the local device of a tree if it has one that is not mounted, and
// returns what that freed.
func (t *Trees) DropLocal(tree chunk.ID) (freed int64) {
	defer t.locks.lock(tree)()
	return t.dropUnused(tree)
}

// dropUnused is DropLocal for who holds the tree's lock.
func (t *Trees) dropUnused(tree chunk.ID) (freed int64) {
	if _, has := t.HasLocal(tree); !has || t.isLocal(t.get(tree)) {
		return 0
	}
	freed, err := t.dropLocal(tree)
	if err != nil {
		t.log.Warn("a local device stays that is to go", "cause", err)
	}
	return freed
}

// yieldLocal removes a local device that is not mounted, and returns what that freed.
// It waits for nobody.
func (t *Trees) yieldLocal() int64 {
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.locals.bytes))
	t.mu.Unlock()
	for _, tree := range all {
		unlock, free := t.locks.tryLock(tree)
		if !free {
			continue
		}
		freed := t.dropUnused(tree)
		unlock()
		if freed > 0 {
			t.log.Info("a local device went, as room is needed", "tree", tree.Short(), "bytes", freed)
			return freed
		}
	}
	return 0
}

// DropLocals removes the local devices that are not mounted.
func (t *Trees) DropLocals() {
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.locals.bytes))
	t.mu.Unlock()
	for _, tree := range all {
		t.DropLocal(tree)
	}
}

// isLocal tells whether the newest mount of a tree reads its local device.
func (t *Trees) isLocal(m *served) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return m != nil && m.local
}

// lookAgain finds out how a tree is mounted of which not all mounts could be taken
// away.
func (t *Trees) lookAgain(tree chunk.ID, m *served) {
	mounts, err := mountPoints(t.root)
	if entry, mounted := mounts[t.point(tree)]; err == nil && mounted {
		t.setMounted(m, true, entry.mode, isLocalSource(entry.source))
	}
}

// isStale tells whether a mounted tree is to be mounted anew, over the mount that is
// there, because it has a local device now, or none any more, or its reads are to be
// seen. The caller holds the tree's lock.
func (t *Trees) isStale(tree chunk.ID, m *served) bool {
	return t.useLocal(tree) != t.isLocal(m)
}

// useLocal tells whether mounts of a tree are to read its local device: it has one, and
// nobody wants to see what is read.
func (t *Trees) useLocal(tree chunk.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, has := t.locals.bytes[tree]
	return has && !t.watched[tree]
}

// mountLocal mounts a tree with its local device, if it has one.
func (t *Trees) mountLocal(tree chunk.ID, m *served) (mode Mode, ok bool) {
	if !t.useLocal(tree) {
		return "", false
	}
	info, err := os.Stat(t.localDevice(tree))
	if err == nil && info.Size() != m.header.DeviceSize {
		err = fmt.Errorf("it has %d bytes, the device %d", info.Size(), m.header.DeviceSize)
	}
	if err == nil {
		mode, err = mountOver(t.kernel.mountLocal, t.localMetadata(tree), t.localDevice(tree), t.point(tree))
	}
	if err == nil {
		return mode, true
	}
	_, failed := t.dropLocal(tree)
	t.log.Error("a local device cannot be used: the tree is served by the daemon", "tree", tree.Short(), "cause", errors.Join(err, failed))
	return "", false
}
