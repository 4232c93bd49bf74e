package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/format/chunk"
	"lighter/node/trees"
)

// Recover takes over or removes the mounts and unfinished files of a previous daemon. It is called
// before the first Mount, and before the server serves. Files that cannot be removed are not an
// error: the store lists them as leftovers.
//
// If the server has taken over the previous daemon's connection (takenOver), all trees are served
// again and the mounts stay. Otherwise the devices ended with the previous daemon, so Recover
// detaches its mounts. Containers that use such a mount keep it, and get errors for data that is
// not in the page cache. The next Mount of a tree makes a new mount.
func (m *Mounts) Recover(takenOver bool) error {
	if err := m.trees.Recover(takenOver); err != nil {
		return err
	}
	if !takenOver {
		return removeMounts(m.root)
	}
	mounts, err := mountPoints(m.root)
	if err != nil {
		return err
	}
	list, err := m.trees.List()
	if err != nil {
		return err
	}
	for _, tree := range list {
		entry, mounted := mounts[m.point(tree)]
		if !mounted || m.trees.Served(tree) == nil {
			continue
		}
		m.adopt(tree, entry)
	}
	return nil
}

// adopt records an entry of the kernel's mount table as the newest mount of a tree.
func (m *Mounts) adopt(tree chunk.ID, entry tableEntry) {
	mount, _ := m.get(tree)
	mount.Mode = entry.mode
	if trees.IsLocalMetadata(entry.source) {
		mount.Kind = LocalDevice
	} else if mount.Kind != NewDevice {
		mount.Kind = KnownDevice
	}
	m.set(tree, mount)
}

// Connection returns the number MAJOR:MINOR of the file system on root's devices directory, which
// identifies its FUSE connection, or "" if none is mounted.
func Connection(root string) (string, error) {
	mounts, err := mountPoints(root)
	return mounts[Devices(root)].number, err
}

// removeMounts detaches the trees that are mounted below root, and the layers over them. Other
// mounts stay.
func removeMounts(root string) error {
	lists, err := os.ReadDir(MergedDir(root, ""))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, list := range lists {
		if err := SplitAll(MergedDir(root, list.Name())); err != nil {
			return err
		}
	}
	dir := pointsDir(root)
	mounts, err := mountPoints(root)
	if err != nil {
		return err
	}
	for point := range mounts {
		if filepath.Dir(point) != dir || !trees.IsTree(point) {
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
		if point := filepath.Join(dir, entry.Name()); trees.IsTree(point) {
			_ = os.Remove(point) // a directory that is not empty stays: trees can still be mounted on it
		}
	}
	return nil
}

// Release ends the FUSE connection of root's devices, even if other processes have it open, and
// detaches the mounts below root. The caller makes sure that no daemon serves them. Pending and
// later reads of processes that still use the mounts fail.
func Release(root string) error {
	// A forced unmount ends the connection, even if the unmount fails because the mount is in use.
	err := unix.Unmount(Devices(root), unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	switch {
	case err == nil, errors.Is(err, unix.EBUSY):
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // not mounted
	default:
		return fmt.Errorf("end the FUSE connection of %s: %w", Devices(root), err)
	}
	if err := removeMounts(root); err != nil {
		return err
	}
	return detach(Devices(root))
}

// Abandon removes the mounts of a node below root, and root itself. The caller makes sure that no
// daemon uses root now or later.
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
