package mount

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// namesType is the type, in the kernel's mount table, of the file system that shows images by their
// names (package directory). Its source is the node's root.
const namesType = "fuse.lighter-directory"

// MountNames mounts a new FUSE file system on dir, for the images' names, and returns the
// descriptor of its connection. All users may use it; set-user-ID bits and devices have no effect.
// dir is an empty directory, and its path has no symbolic links.
//
// If private is set, the kernel checks the modes that the file system reports, as it does for files
// on a disk. It then does not ask the file system when a process enters a directory.
//
// The mount is shared: a namespace that is a copy of this one sees trees that are mounted later,
// unless it has cut itself off. It does not matter how the mounts above dir propagate.
func MountNames(root, dir string, private bool) (fd int, err error) {
	if err := checkEmpty(dir); err != nil {
		return -1, err
	}
	if fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open /dev/fuse (this needs root, and FUSE in the kernel): %w", err)
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other,max_read=%d",
		fd, unix.S_IFDIR, NamesRead)
	if private {
		options += ",default_permissions"
	}
	if err = unix.Mount(root, dir, namesType, flags, options); err == nil {
		err = unix.Mount("", dir, "", unix.MS_SHARED, "")
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("mount on %s: %w", dir, err), DetachNames(root, dir), unix.Close(fd))
	}
	return fd, nil
}

// NamesRead is the size of the largest read of the file system of names, in bytes.
const NamesRead = 128 << 10

// checkEmpty returns an error if dir has files, or if something is mounted on it.
func checkEmpty(dir string) error {
	top, err := mountedOn(dir)
	if err != nil {
		return err
	}
	if top != "" {
		return fmt.Errorf("something is mounted at %s already (%s): unmount it first, or choose another directory",
			dir, top)
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty: choose another directory", dir)
	}
	return err
}

// DetachNames detaches the file systems of names that nodes with this root have mounted on dir, and
// the trees that are mounted below it. Processes that use such a tree keep it. Mounts of others,
// and what is below them, stay.
func DetachNames(root, dir string) error {
	for {
		list, err := readTable(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false })
		if err != nil {
			return fmt.Errorf("list the mounts on %s: %w", dir, err)
		}
		if len(list) == 0 || list[len(list)-1].FSType != namesType || list[len(list)-1].Source != root {
			return nil
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("detach %s: %w", dir, err)
		}
	}
}
