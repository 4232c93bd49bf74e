package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"lighter/format/index"
	"lighter/format/tree"
	"lighter/node/fuse"
)

// trial is the result of trying to mount an empty tree.
type trial struct {
	begin     error // why nothing could be tried
	erofs     error // from plain files
	overlay   error
	userxattr error
	idmap     error
	fuse      error
	resends   bool // the kernel resends FUSE requests
}

// scratch makes a directory on the file system of the node's root, which need not exist yet.
func (d *doctor) scratch() (string, error) {
	for dir := d.config.Root; ; dir = filepath.Dir(dir) {
		made, err := os.MkdirTemp(dir, "doctor-")
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			return made, err
		}
	}
}

// try tries mounts below dir, in a mount namespace that ends with the thread.
func try(dir string) trial {
	result := make(chan trial)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var t trial
		if t.begin = isolate(); t.begin == nil {
			t.begin = t.run(dir)
		}
		result <- t
	}()
	return <-result
}

// isolate gives the thread a mount namespace of its own.
func isolate() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

func (t *trial) run(dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	var image bytes.Buffer
	if _, err := index.Make(&tree.Tree{Root: tree.NewDir(tree.Node{Mode: 0o755}, nil)}, &image); err != nil {
		return err
	}
	for _, name := range []string{"tree", "upper", "work", "root", "devices"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			return err
		}
	}
	if err := errors.Join(os.WriteFile(at("metadata"), image.Bytes(), 0o400),
		os.WriteFile(at("device"), nil, 0o400)); err != nil {
		return err
	}
	if t.erofs = unix.Mount(at("metadata"), at("tree"), "erofs", unix.MS_RDONLY, "device="+at("device")); t.erofs == nil {
		layers := "lowerdir=" + at("tree") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
		t.overlay = mountOnce(at("root"), layers)
		t.userxattr = mountOnce(at("root"), layers+",userxattr")
		t.idmap = tryIDMap(at("tree"))
		defer unix.Unmount(at("tree"), unix.MNT_DETACH) // the directory is removed next
	}
	t.tryFUSE(at("devices"))
	return nil
}

// mountOnce mounts an overlay and unmounts it.
func mountOnce(dir, options string) error {
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return err
	}
	return unix.Unmount(dir, 0)
}

func (t *trial) tryFUSE(dir string) {
	server, err := fuse.Mount(dir, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.fuse = err
		return
	}
	t.resends = server.State().Resends()
	t.fuse = errors.Join(unix.Unmount(dir, unix.MNT_DETACH), server.Detach())
}

// tryIDMap tries to map the owners of a mount into a user namespace.
func tryIDMap(dir string) error {
	clone, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("copy a mount: %w", err)
	}
	defer unix.Close(clone)
	cat := exec.Command("cat") // it waits for input while its namespace is used
	input, err := cat.StdinPipe()
	if err != nil {
		return err
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	cat.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cat.Start(); err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() {
		input.Close()
		_ = cat.Wait() // its result does not matter
	}()
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cat.Process.Pid))
	if err != nil {
		return fmt.Errorf("open a user namespace: %w", err)
	}
	defer users.Close()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("map the IDs of a mount: %w", err)
	}
	return nil
}
