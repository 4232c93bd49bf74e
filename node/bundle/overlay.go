package bundle

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"lighter/node/mount"
)

// mount mounts the root file system: an overlay on the image. In a user namespace, the overlay may
// only set attributes of users.
func (p places) mount(rootless bool) error {
	if err := copyRoot(p.image(), p.upper()); err != nil {
		return fmt.Errorf("make the writable layer of %s: %w", p.dir, err)
	}
	escape := mount.EscapeOverlay.Replace
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escape(p.image()), escape(p.upper()), escape(p.work()))
	if rootless {
		options += ",userxattr"
	}
	err := unix.Mount("overlay", p.root(), "overlay", 0, options)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: the directory must be on ext4, XFS, btrfs or tmpfs, and not on an overlay", err)
	}
	if err != nil {
		return fmt.Errorf("mount the root file system at %s: %w", p.root(), err)
	}
	return nil
}

// copyRoot gives the writable layer the owner and the mode of the image's root directory.
func copyRoot(image, upper string) error {
	var stat unix.Stat_t
	if err := unix.Stat(image, &stat); err != nil {
		return err
	}
	return errors.Join(os.Lchown(upper, int(stat.Uid), int(stat.Gid)), unix.Chmod(upper, stat.Mode&0o7777))
}

// unmount unmounts the root file system, unless a container uses it.
func (p places) unmount() error {
	points, err := mount.Points(p.root())
	if err != nil || len(points) == 0 {
		return err
	}
	pid, err := mount.RootOf(p.root())
	switch {
	case err != nil:
		return fmt.Errorf("find containers that run in %s: %w", p.dir, err)
	case pid != 0:
		return fmt.Errorf("a container runs in %s: end it first (its process %d)", p.dir, pid)
	}
	err = unix.Unmount(p.root(), unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("%w: a process uses it (fuser -vm %s)", err, p.root())
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", p.root(), err)
	}
	return nil
}
