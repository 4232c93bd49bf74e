package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Bind shows a mounted tree at dir as well, to all who can go there: read-only,
// and without what its device nodes and set-user-ID programs could do. dir is an
// existing directory, a path without symbolic links, on which nothing is mounted.
func Bind(tree, dir string) error {
	top, err := mountedOn(dir)
	if err != nil {
		return err
	}
	if top != "" {
		return fmt.Errorf("something is mounted at %s already (%s): unmount it first, or choose another directory", dir, top)
	}
	if err := bind(tree, dir); err != nil {
		return fmt.Errorf("mount at %s: %w", dir, err)
	}
	return nil
}

// bind makes the mount and its restrictions before anybody can see it.
func bind(tree, dir string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, tree, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	restrict := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &restrict)
	if err == nil {
		err = unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	return errors.Join(err, unix.Close(fd))
}

// Unbind undoes one Bind of a tree below root, which need not have a node any
// more. found is false if something else is mounted at dir, or nothing: that
// stays.
func Unbind(root, dir string) (found bool, err error) {
	found, err = Bound(root, dir)
	if !found || err != nil {
		return false, err
	}
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
		return true, unmountError(dir, err)
	}
	return true, nil
}

// Bound tells whether what is mounted at dir is a tree below root.
func Bound(root, dir string) (bool, error) {
	top, err := mountedOn(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return strings.HasPrefix(top, filepath.Join(root, "trees")+"/"), err
}

// Rebind puts a mounted tree in the place of one at dir that is not served any
// more.
func Rebind(tree, dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("take away what a former node mounted on %s: %w", dir, err)
	}
	return Bind(tree, dir)
}

// mountedOn returns what is mounted on dir, on top, or nothing.
func mountedOn(dir string) (source string, err error) {
	mounts, err := mountPoints(dir)
	return mounts[dir].source, err
}
