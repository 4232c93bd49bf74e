package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/trace"
)

// maxAgain bounds how many mounts of a tree lie on each other.
const maxAgain = 16

// MountAgain mounts a tree that is mounted once more, over that: what starts from
// now on finds nothing of it in memory, and reads all that it needs. Who uses the former
// mount keeps it. A tree that is not mounted is left so. In any case its mounts read the
// device and not a local one until Unwatch, which undoes MountAgain.
func (t *Trees) MountAgain(ctx context.Context, tree chunk.ID) error {
	if err := t.useWhole(ctx, tree, func() error { return t.mountAgain(ctx, tree) }); err != nil {
		return fmt.Errorf("mount tree %s once more: %w", tree.Short(), err)
	}
	return nil
}

func (t *Trees) mountAgain(ctx context.Context, tree chunk.ID) error {
	unlock, err := t.locks.lockOrCancel(ctx, tree)
	if err != nil {
		return err
	}
	defer unlock()
	t.watch(tree, true)
	m := t.get(tree)
	if m == nil || !t.isMounted(m) {
		return nil
	}
	if m.again >= maxAgain {
		return fmt.Errorf("it was mounted %d times: remove its containers and images, or start the node again, first", maxAgain)
	}
	if err := t.mount(ctx, tree); err != nil {
		return err
	}
	m.again++
	return nil
}

// Unwatch says that what MountAgain was called for, well or not, is over: mounts may
// read the tree's local device again.
func (t *Trees) Unwatch(tree chunk.ID) {
	defer t.locks.lock(tree)()
	t.watch(tree, false)
}

func (t *Trees) watch(tree chunk.ID, watched bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if watched {
		t.watched[tree] = true
	} else {
		delete(t.watched, tree)
	}
}

// Starts says that a container is about to start on a tree that is mounted.
func (t *Trees) Starts(tree chunk.ID) {
	defer t.locks.lock(tree)()
	if m := t.get(tree); m != nil && m.fresh && m.device.Unread() {
		t.recorder.Starts(tree, m.device)
	}
}

// Files says which files of a tree on this machine a trace is of.
func (t *Trees) Files(ctx context.Context, of trace.Trace) (trace.Recording, error) {
	file, err := os.Open(filepath.Join(t.dir(of.Tree), "map"))
	if err != nil {
		return trace.Recording{}, err
	}
	defer file.Close()
	extents, err := index.OpenMap(file, of.Tree, index.NewPages(1)) // not to push out what readers need
	if err != nil {
		return trace.Recording{}, err
	}
	metadata, err := os.Open(t.metadata(of.Tree))
	if err != nil {
		return trace.Recording{}, err
	}
	defer metadata.Close()
	image, err := erofs.Open(metadata, extents.MetadataSize)
	if err != nil {
		return trace.Recording{}, err
	}
	return of.Files(ctx, image, extents, trace.MaxText)
}
