package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/sleep"
)

// Unmount undoes Mount and ends the tree's device. The caller makes sure that no container uses the
// tree: such a container would keep the mount, but its reads would fail.
func (m *Mounts) Unmount(tree chunk.ID) error {
	defer m.trees.Lock(tree)()
	return m.unmount(tree)
}

// Remove unmounts a tree and removes it from the disk.
func (m *Mounts) Remove(tree chunk.ID) error {
	defer m.trees.Lock(tree)()
	if err := m.unmount(tree); err != nil {
		return err
	}
	return m.trees.Discard(tree)
}

func (m *Mounts) unmount(tree chunk.ID) error {
	if m.trees.Served(tree) == nil {
		return nil
	}
	ctx, hidden := context.WithCancel(context.Background())
	var interrupting sync.WaitGroup
	interrupting.Go(func() { m.interrupt(ctx, tree) })
	err := m.hide(tree)
	hidden()
	interrupting.Wait()
	if err != nil {
		return err
	}
	return m.unserve(tree)
}

// interrupt cancels the reads of a tree if umount(2) has removed the last mount and does not
// return: the kernel then waits for reads of processes that were killed. Later reads are cancelled,
// too, until ctx is done.
func (m *Mounts) interrupt(ctx context.Context, tree chunk.ID) {
	for wait := hideTimeout; sleep.For(ctx, wait); wait = hideAgain {
		mounts, err := mountPoints(m.root)
		if _, mounted := mounts[m.point(tree)]; err == nil && !mounted {
			m.server.Cancel(tree)
		}
	}
}

// hide unmounts the tree's mounts. Overlays and bind mounts that were made from them stay, and can
// still read the device. The caller holds the tree's lock.
func (m *Mounts) hide(tree chunk.ID) error {
	if err := unmount(m.point(tree)); err != nil {
		m.update(tree)
		return fmt.Errorf("unmount tree %s: %w", tree.Short(), err)
	}
	m.forget(tree)
	if err := os.Remove(m.point(tree)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmount tree %s: %w", tree.Short(), err)
	}
	return nil
}

// update finds out which mount of a tree is the newest, after only some of its mounts could be
// unmounted.
func (m *Mounts) update(tree chunk.ID) {
	mounts, err := mountPoints(m.root)
	if entry, mounted := mounts[m.point(tree)]; err == nil && mounted {
		m.adopt(tree, entry)
	}
}

// UnmountUnused unmounts a tree and ends its device, unless the tree is still used: by a process,
// by a bind mount or an overlay, in whatever mount namespace. A tree in use keeps its device, and
// used is true. The next Mount mounts the tree again.
func (m *Mounts) UnmountUnused(tree chunk.ID) (used bool, err error) {
	defer m.trees.Lock(tree)()
	if m.trees.Served(tree) == nil {
		return false, nil
	}
	if m.server.Busy(tree) {
		return true, nil
	}
	if err := m.hide(tree); errors.Is(err, unix.EBUSY) {
		return true, nil
	} else if err != nil {
		return true, err
	}
	if used, err := m.server.IsOpen(tree); used || err != nil {
		return true, err
	}
	return false, m.unserve(tree)
}

// UnmountIdle unmounts each tree that no process works in. It ends no device: containers may use
// the devices, and the next daemon serves them again. Starts are no longer prefetched, but
// locations are still fetched for reads that need them.
//
// If reads of a tree are not answered within idleTimeout, the tree stays mounted: the kernel would
// not finish the unmount before these reads, which may wait for a hub that does not answer.
func (m *Mounts) UnmountIdle() {
	m.trees.EndStreams()
	left := m.Mounted()
	for end := time.Now().Add(idleTimeout); ; time.Sleep(idlePause) {
		left = slices.DeleteFunc(left, func(l Mounted) bool { return m.unmountIdle(l.Tree) })
		if len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, l := range left {
		m.log.Info("a tree stays mounted: its reads wait for the next daemon", "tree", l.Tree.Short())
	}
}

// unmountIdle tries to unmount a tree. done is false if it has not tried, because the tree's lock
// is held or reads of the tree are unanswered.
func (m *Mounts) unmountIdle(tree chunk.ID) (done bool) {
	unlock, free := m.trees.TryLock(tree)
	if !free {
		return false
	}
	defer unlock()
	if m.server.Busy(tree) {
		return false
	}
	if m.trees.Served(tree) != nil {
		if err := m.hide(tree); err != nil {
			m.log.Info("a tree stays mounted", "tree", tree.Short(), "err", err)
		}
	}
	return true
}
