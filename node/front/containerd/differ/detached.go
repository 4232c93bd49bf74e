package differ

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// withDetached mounts what mounts say, and calls fn with a path of it. The path works in this
// process alone. The mount has no place in the file system while fn runs: if the process is
// killed, the kernel removes the mount.
func withDetached(mounts []mount.Mount, fn func(root string) error) error {
	fd, err := detached(mounts)
	if err != nil {
		return fmt.Errorf("mount the parent of the snapshot: %w", err)
	}
	return errors.Join(fn(fmt.Sprintf("/proc/self/fd/%d", fd)), unix.Close(fd))
}

// detached returns a descriptor of the root of what mounts say.
func detached(mounts []mount.Mount) (fd int, err error) {
	dir, err := os.MkdirTemp("", "lighter-diff-")
	if err != nil {
		return -1, err
	}
	defer func() {
		if left := os.Remove(dir); err == nil && left != nil {
			err = errors.Join(left, unix.Close(fd))
		}
	}()
	if err := mount.All(mounts, dir); err != nil {
		return -1, err
	}
	fd, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if unmounted := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); unmounted != nil {
		return -1, errors.Join(err, unmounted)
	}
	return fd, err
}
