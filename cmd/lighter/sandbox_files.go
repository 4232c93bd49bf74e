package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// countsSwap reports whether control groups below root count swap. Where they do not, old versions
// of runc fail at a limit.
func countsSwap(root string) bool {
	for _, file := range []string{"memory/memory.memsw.limit_in_bytes", "memory.swap.max", "*/memory.swap.max"} {
		if found, _ := filepath.Glob(filepath.Join(root, file)); len(found) > 0 { // the patterns are well formed
			return true
		}
	}
	return false
}

// mapOwners mounts what is mounted at from also at to, where the owners of its files are those of
// the sandbox's user namespace. It needs Linux 5.19 for EROFS.
func mapOwners(from, to string) error {
	clone, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("copy the mount %s: %w", from, err)
	}
	defer unix.Close(clone)
	users, err := sandboxUsers()
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer users.Close()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("map the IDs of the mount %s: %w", from, err)
	}
	if err := unix.MoveMount(clone, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount it at %s: %w", to, err)
	}
	return nil
}

// sandboxUsers opens a user namespace with the IDs of a sandbox.
func sandboxUsers() (users *os.File, err error) {
	cat := exec.Command("cat") // it waits for its input until its namespace is open
	input, err := cat.StdinPipe()
	if err != nil {
		return nil, err
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstSandboxID, Size: sandboxIDs}}
	cat.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cat.Start(); err != nil {
		return nil, err
	}
	users, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", cat.Process.Pid))
	return users, errors.Join(err, input.Close(), cat.Wait())
}

// workDir returns the directory of the image below root that its WORKDIR is, without links: a path
// that leads nowhere else once the sandbox has mounted what it mounts. Processes that begin below
// /proc could begin in a directory of this machine, by a descriptor that runc has open.
func workDir(root, text string) (string, error) {
	dir, err := os.Open(root)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	if root, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd())); err != nil {
		return "", err
	}
	fd, err := unix.Openat2(int(dir.Fd()), path.Join("/", text), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return "", fmt.Errorf("find where to run (WORKDIR %s) in the image: %w", text, err)
	}
	found := os.NewFile(uintptr(fd), text)
	defer found.Close()
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", err
	}
	at = path.Join("/", strings.TrimPrefix(at, root))
	for _, mount := range sandboxMounts {
		if at == mount.Destination || strings.HasPrefix(at, mount.Destination+"/") {
			return "", fmt.Errorf("where to run (WORKDIR %s) is %s, which is not the image's: %s is mounted over it", text, at, mount.Destination)
		}
	}
	return at, nil
}
