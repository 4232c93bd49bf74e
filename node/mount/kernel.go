package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Mode says how the kernel reads the two files of a tree.
type Mode string

const (
	Auto Mode = "auto" // as files if the kernel can, else behind loop devices
	File Mode = "file" // as files: Linux 6.12, on an ordinary local file system
	Loop Mode = "loop" // each behind a loop device: Linux 5.16, on any file system
	None Mode = "none" // not at all: no tree is mounted
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Auto, File, Loop, None} }

// kernel mounts EROFS.
type kernel struct {
	mode  Mode
	mount func(source, target, fstype string, flags uintptr, data string) error // mount(2)
}

// mountErofs mounts a metadata image on the directory dir. device is the file that has the data.
// mountErofs returns the mode that it used, File or Loop. It does not read from the device.
//
// The kernel's read_ahead_kb stays at its default of 128. With 1024 the kernel requests 1.5 times
// as many bytes in nearly as many reads (Linux 6.18, importing Python packages). Instead, the
// device reads ahead of sequential readers. Loop devices get a read-ahead of 128 KiB, too
// (docs/decisions/loop.md).
func (k kernel) mountErofs(metadata, device, dir string) (Mode, error) {
	if strings.Contains(device, ",") {
		return "", fmt.Errorf("mount %s with EROFS: the kernel takes no path with a comma for a device, "+
			"and %s has one: choose another root directory", metadata, device)
	}
	var fileErr error
	if k.mode == File || k.mode == Auto {
		err := k.erofs(metadata, device, dir)
		if err == nil {
			return File, nil
		}
		fileErr = fmt.Errorf("mount %s with EROFS on %s: %w%s", metadata, dir, err, erofsHint(err))
		if k.mode == File || !needsBlockDevice(err) {
			return "", fileErr
		}
	}
	metadataLoop, deviceLoop, release, err := attachBoth(metadata, device)
	if err == nil {
		defer release()
		err = k.erofs(metadataLoop, deviceLoop, dir)
	}
	if err != nil {
		return "", errors.Join(fileErr, fmt.Errorf("mount %s with EROFS on %s, behind loop devices: %w%s",
			metadata, dir, err, erofsHint(err)))
	}
	return Loop, nil
}

// mountLocal does what mountErofs does, for a device that is an ordinary file. It uses direct I/O
// if the kernel supports that. Otherwise each page of the file may be in the page cache twice.
func (k kernel) mountLocal(metadata, device, dir string) (Mode, error) {
	if k.mode == Loop {
		return k.mountErofs(metadata, device, dir)
	}
	if k.erofs(metadata, device+",directio", dir) == nil {
		return File, nil
	}
	return k.mountErofs(metadata, device, dir)
}

func (k kernel) erofs(source, device, dir string) error {
	// No MS_NODEV or MS_NOSUID: snapshots are bind-mounted from here, and their device nodes and
	// set-user-ID programs must work. Only root can reach dir, because only root can enter the
	// directories above it.
	return k.mount(source, dir, "erofs", unix.MS_RDONLY, "device="+device)
}

// needsBlockDevice reports whether the kernel could mount the image from a block device.
func needsBlockDevice(err error) bool {
	return errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.ELOOP)
}

// erofsHint explains errors of mount(2) that do not explain themselves.
func erofsHint(err error) string {
	switch {
	case needsBlockDevice(err):
		return " (this kernel mounts EROFS from block devices only, or the image lies on a file system " +
			"that it cannot mount from: use mount_mode loop, or Linux 6.12 with " +
			"CONFIG_EROFS_FS_BACKED_BY_FILE and an ordinary local file system)"
	case errors.Is(err, unix.ENODEV):
		return " (this kernel has no EROFS: load the module erofs, or use a kernel with CONFIG_EROFS_FS)"
	case errors.Is(err, unix.EPERM):
		return " (this needs root)"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.EOPNOTSUPP):
		return " (the kernel rejects the image; its log says why)"
	default:
		return ""
	}
}

// unmount unmounts everything that is mounted on dir. It returns nil if nothing is mounted there,
// or if dir does not exist. It never detaches a mount that is in use: its users would go on with a
// tree that the node no longer knows.
func unmount(dir string) error {
	if err := unmountAll(dir, 0); err != nil {
		return unmountError(dir, err)
	}
	return nil
}

func unmountError(dir string, err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: %w (a process works in it, or something is mounted in it: "+
			"see `fuser -m` and /proc/self/mountinfo)", dir, err)
	}
	return fmt.Errorf("unmount %s: %w", dir, err)
}

// detach detaches everything that is mounted on dir, even mounts in use: their users keep them.
// Callers use it only for mounts whose devices are not served any more, and never will be.
func detach(dir string) error {
	if err := unmountAll(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach what a previous node mounted on %s: %w", dir, err)
	}
	return nil
}

// unmountAll calls umount(2) until nothing is mounted on dir.
func unmountAll(dir string, flags int) error {
	for {
		err := unix.Unmount(dir, flags|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil // nothing is mounted, or dir does not exist
		}
		if err != nil {
			return err
		}
	}
}
