package mount

import (
	"context"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/guess"
)

// MountAgain mounts a mounted tree once more, over the existing mount. A process that starts from
// the new mount finds none of the tree's data in the page cache, so all its reads can be recorded.
// Users of the existing mount keep that mount. If the tree is not mounted, MountAgain mounts
// nothing. Until Unwatch is called, new mounts of the tree do not use the local device. The caller
// must call Unwatch, even after an error.
func (m *Mounts) MountAgain(ctx context.Context, tree chunk.ID) error {
	if err := m.trees.WithRepair(ctx, tree, func() error { return m.mountAgain(ctx, tree) }); err != nil {
		return fmt.Errorf("mount tree %s once more: %w", tree.Short(), err)
	}
	return nil
}

func (m *Mounts) mountAgain(ctx context.Context, tree chunk.ID) error {
	unlock, err := m.trees.LockContext(ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	m.watch(tree, true)
	mount, ok := m.get(tree)
	if !ok {
		return nil
	}
	if mount.count >= maxAgain {
		return fmt.Errorf("it was mounted again %d times already: "+
			"remove its containers and images, or start the node again, first", maxAgain)
	}
	if err := m.mount(ctx, tree); err != nil {
		return err
	}
	mount, _ = m.get(tree)
	mount.count++
	m.set(tree, mount)
	return nil
}

// Unwatch ends MountAgain's effect on later mounts: they may use the local device again.
func (m *Mounts) Unwatch(tree chunk.ID) {
	defer m.trees.Lock(tree)()
	m.watch(tree, false)
}

func (m *Mounts) watch(tree chunk.ID, watched bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if watched {
		m.watched[tree] = true
	} else {
		delete(m.watched, tree)
	}
}

// NoteStart is called when a container is about to start from a mounted tree. The start is recorded
// if nothing of the tree was read before.
func (m *Mounts) NoteStart(tree chunk.ID) {
	defer m.trees.Lock(tree)()
	if mount, _ := m.get(tree); mount.Kind != NewDevice {
		return
	}
	if open := m.trees.Served(tree); open.Device.Reads() == 0 {
		m.recorder.BeginStart(tree, open.Device)
	}
}

// NoteProgram is called when it is known what a container runs that is about to start from a
// mounted tree. Containers on a local device need no guess.
func (m *Mounts) NoteProgram(ctx context.Context, tree chunk.ID, program guess.Config) {
	unlock, err := m.trees.LockContext(ctx, tree)
	if err != nil {
		return // it runs already
	}
	defer unlock()
	if mount, ok := m.get(tree); ok && mount.Kind != LocalDevice {
		m.trees.Served(tree).Device.Expect(program)
	}
}
