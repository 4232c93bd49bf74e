package mount

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lighter/format/chunk"
)

// Recover puts in order what a former daemon left mounted or unfinished, before the
// first Mount and before the server serves. What it cannot delete is no error
// (Leftovers).
//
// If the server has taken over the former one's connection, all goes on: each
// tree on the disk has its device again, for there may be containers that use
// it, and what is mounted stays so. It reads no more of a tree than the head of
// its index, of several at a time. A tree that cannot be opened costs its own users
// errors, and is listed by Lost; it stays on the disk, and is put right, with the
// hub's help, by the next Mount.
//
// Otherwise the devices went with the daemon, so its mounts are taken away:
// containers that still use one keep it, and get errors for what is not in
// memory; whoever mounts the tree from now on gets a new one.
func (t *Trees) Recover(takenOver bool) error {
	if err := t.removeUnfinished(); err != nil {
		return err
	}
	if !takenOver {
		return removeMounts(t.root)
	}
	mounts, err := mountPoints(t.root)
	if err != nil {
		return err
	}
	trees, err := t.List()
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(recoverTogether)
	for _, tree := range trees {
		group.Go(func() error {
			entry, mounted := mounts[t.point(tree)]
			if err := t.recover(tree, mounted, entry); err != nil {
				t.lose(tree, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// recoverTogether is how many trees are opened at a time. They wait for the disk.
const recoverTogether = 16

func (t *Trees) recover(tree chunk.ID, mounted bool, entry mountEntry) error {
	m, err := t.open(tree)
	if err != nil {
		return err
	}
	m.mounted, m.mode, m.local = mounted, entry.mode, isLocalSource(entry.source)
	return t.serve(tree, m)
}

func (t *Trees) lose(tree chunk.ID, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost[tree] = cause
}

// Lost says what is wrong with trees: why one that a former daemon served could not
// be by this one, or what Scrub found. Of those that were mounted since there is
// nothing to say.
func (t *Trees) Lost() map[chunk.ID]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.lost)
}

// Connection says which connection is mounted at root's devices: the number of
// its file system, MAJOR:MINOR, or "" if none is.
func Connection(root string) (string, error) {
	mounts, err := mountPoints(root)
	return mounts[Devices(root)].number, err
}

// removeMounts takes away the trees that are mounted below root. What somebody
// else has put there stays.
func removeMounts(root string) error {
	dir := filepath.Join(root, "mounts")
	mounts, err := mountPoints(root)
	if err != nil {
		return err
	}
	for point := range mounts {
		if filepath.Dir(point) != dir || !isTree(point) {
			continue
		}
		if err := detach(point); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list the mounts: %w", err)
	}
	for _, entry := range entries {
		if point := filepath.Join(dir, entry.Name()); isTree(point) {
			_ = os.Remove(point) // what is not empty stays, and can be mounted over
		}
	}
	return nil
}

func isTree(path string) bool {
	_, err := chunk.ParseID(filepath.Base(path))
	return err == nil
}

// Release ends the connection of root's devices, whoever holds it, and takes away
// what is mounted below root, for whoever knows that no daemon serves it. The
// reads that wait for one fail, and so do later ones of whoever still uses a tree.
func Release(root string) error {
	// Whoever holds the connection, a forced unmounting ends it, although the mount
	// itself is busy.
	err := unix.Unmount(Devices(root), unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // these: not mounted
		return fmt.Errorf("end the connection of %s: %w", Devices(root), err)
	}
	if err := removeMounts(root); err != nil {
		return err
	}
	return detach(Devices(root))
}

// Abandon removes root and all that is below it, for whoever knows that no
// daemon uses it or ever will: mounts first.
func Abandon(root string) error {
	if _, err := os.Lstat(root); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := removeMounts(root); err != nil {
		return err
	}
	left, err := mountPoints(root)
	if err != nil {
		return err
	}
	for point := range left {
		if point != Devices(root) && point != probePoint(root) {
			return fmt.Errorf("remove %s: something is mounted at %s: unmount it first", root, point)
		}
		if err := detach(point); err != nil {
			return err
		}
	}
	return os.RemoveAll(root)
}
