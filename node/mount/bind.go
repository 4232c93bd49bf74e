package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/node/trees"
)

// Bind mounts a mounted tree at dir, too: read-only, with device nodes and set-user-ID bits
// disabled. All users who can reach dir see the tree. dir is an existing directory on which nothing
// is mounted. Its path has no symbolic links. The error wraps ErrNotMounted if the tree is not
// mounted.
func Bind(tree, dir string) error { return bindTo(tree, dir, nil) }

// BindMapped does what Bind does. In user namespace space, the files have the owners that they have
// in the tree.
func BindMapped(tree, dir string, space *os.File) error { return bindTo(tree, dir, space) }

func bindTo(tree, dir string, space *os.File) error {
	top, err := mountedOn(dir)
	if err != nil {
		return err
	}
	if top != "" {
		return fmt.Errorf("something is mounted at %s already (%s): unmount it first, or choose another directory",
			dir, top)
	}
	if err := bind(tree, dir, space); err != nil {
		return fmt.Errorf("mount at %s: %w", dir, err)
	}
	return nil
}

// bind restricts the mount before it becomes visible.
func bind(tree, dir string, space *os.File) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, tree, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	if err := checkMounted(fd); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", tree, err), unix.Close(fd))
	}
	restrict := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if space != nil {
		restrict.Attr_set |= unix.MOUNT_ATTR_IDMAP
		restrict.Userns_fd = uint64(space.Fd())
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &restrict)
	if err == nil {
		err = unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	return errors.Join(err, unix.Close(fd))
}

// ErrNotMounted means that a tree was unmounted before Bind could mount it at another place.
var ErrNotMounted = errors.New("the tree is not mounted any more")

// checkMounted returns an error if a clone of a tree's mount is one of the empty directory below.
func checkMounted(fd int) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(fd, &stat); err != nil {
		return err
	}
	if stat.Type != unix.EROFS_SUPER_MAGIC_V1 && stat.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return ErrNotMounted
	}
	return nil
}

// Unbind undoes one Bind of a tree below root, whether a node runs there or not. If the uppermost
// mount at dir is not such a tree, or there is no mount, Unbind returns false and changes nothing.
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

// Bound reports whether the uppermost mount at dir is a tree below root.
func Bound(root, dir string) (bool, error) {
	top, err := mountedOn(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return strings.HasPrefix(top, trees.Dir(root)+"/"), err
}

// Rebind mounts a mounted tree at dir, and detaches the bound tree there, which is not served any
// more.
func Rebind(tree, dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("detach what a previous node mounted on %s: %w", dir, err)
	}
	return Bind(tree, dir)
}
