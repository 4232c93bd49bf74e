package mount

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Types, in the kernel's mount table, of the file systems that the node serves with go-fuse. Their
// source is the node's root.
const (
	namesType = "fuse.lighter-directory" // shows images by their names (package directory)
	blobsType = "fuse.lighter-blobs"     // has the layers of lazy images (package blobs)
)

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
	options := ",allow_other"
	if private {
		options += ",default_permissions"
	}
	if fd, err = mountServed(namesType, root, dir, options); err != nil {
		return -1, err
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return -1, errors.Join(fmt.Errorf("mount on %s: %w", dir, err), DetachNames(root, dir), unix.Close(fd))
	}
	return fd, nil
}

// MountBlobs mounts a new FUSE file system on dir, for layers that containerd has not downloaded,
// and returns the descriptor of its connection. Only root may use it. dir is an empty directory,
// and its path has no symbolic links.
func MountBlobs(root, dir string) (fd int, err error) { return mountServed(blobsType, root, dir, "") }

// ServedRead is the size of the largest read of the file systems that MountNames and MountBlobs
// mount, in bytes.
const ServedRead = 128 << 10

// mountServed mounts a new FUSE file system, which is read-only, on dir.
func mountServed(fsType, root, dir, options string) (fd int, err error) {
	if err := checkEmpty(dir); err != nil {
		return -1, err
	}
	if fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open /dev/fuse (this needs root, and FUSE in the kernel): %w", err)
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	options = fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,max_read=%d", fd, unix.S_IFDIR, ServedRead) + options
	if err := unix.Mount(root, dir, fsType, flags, options); err != nil {
		return -1, errors.Join(fmt.Errorf("mount on %s: %w", dir, err), unix.Close(fd))
	}
	return fd, nil
}

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
func DetachNames(root, dir string) error { return detachServed(namesType, root, dir) }

// DetachBlobs detaches the file systems that MountBlobs has mounted on dir for nodes with this
// root. Mounts of others stay.
func DetachBlobs(root, dir string) error { return detachServed(blobsType, root, dir) }

// detachServed detaches the file systems of a type that nodes with this root have mounted on dir.
func detachServed(fsType, root, dir string) error {
	for {
		list, err := readTable(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != dir, false })
		if err != nil {
			return fmt.Errorf("list the mounts on %s: %w", dir, err)
		}
		if len(list) == 0 || list[len(list)-1].FSType != fsType || list[len(list)-1].Source != root {
			return nil
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("detach %s: %w", dir, err)
		}
	}
}
