package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mappable replaces the paths of lower directories, one of which is a mounted tree, by paths in the
// directory of the mounted trees. With these paths, containerd can ID-map all of them together.
//
// For a user namespace, containerd clones the nearest common parent of all lower directories, with
// all mounts below it, and maps the clones. For a tree and a snapshot directory that parent is the
// node's root. The root contains the devices' FUSE mount, which cannot be mapped. So the
// snapshots are also mounted beside the trees, in the same directory.
func (s *Snapshotter) mappable(lower []string) ([]string, error) {
	if err := s.mountBeside(); err != nil {
		return nil, fmt.Errorf("mount the snapshots at %s, for a user namespace: %w", s.beside, err)
	}
	dirs := make([]string, len(lower))
	for i, dir := range lower {
		dirs[i] = dir
		if rest, err := filepath.Rel(s.dir, dir); err == nil && filepath.IsLocal(rest) {
			dirs[i] = filepath.Join(s.beside, rest)
		}
	}
	return dirs, nil
}

// mountBeside mounts the snapshots beside the trees, unless they are mounted there already.
func (s *Snapshotter) mountBeside() error {
	s.besideMu.Lock()
	defer s.besideMu.Unlock()
	if err := os.Mkdir(s.beside, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	here, err := os.Stat(s.dir)
	if err != nil {
		return err
	}
	there, err := os.Stat(s.beside)
	if err != nil || os.SameFile(here, there) {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, s.dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	if err == nil {
		err = unix.MoveMount(fd, "", unix.AT_FDCWD, s.beside, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	return errors.Join(err, unix.Close(fd))
}

// unmountBeside undoes mountBeside, also if an earlier daemon called it.
func (s *Snapshotter) unmountBeside() error {
	if s.beside == "" {
		return nil
	}
	s.besideMu.Lock()
	defer s.besideMu.Unlock()
	err := unix.Unmount(s.beside, unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil && !errors.Is(err, unix.EINVAL): // EINVAL: not mounted
		return err
	}
	return os.Remove(s.beside)
}
