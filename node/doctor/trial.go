package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"lighter/format/index"
	"lighter/format/tree"
	"lighter/node/fuse"
)

// trial is the result of trying the mounts that a node needs: an empty tree, overlayfs, and FUSE.
type trial struct {
	failed  error // why no mount could be tried
	erofs   error // of an EROFS mount from plain files
	overlay error // of an overlay on the EROFS mount, or on a plain directory if that mount failed
	fuse    error // of a FUSE mount
	resends bool  // the kernel resends FUSE requests
}

// scratch makes a directory on the file system of the node's root, which need not exist yet.
func (m *machine) scratch() (string, error) {
	for dir := m.config.Root; ; dir = filepath.Dir(dir) {
		made, err := os.MkdirTemp(dir, "doctor-")
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			return made, err
		}
	}
}

// try tries mounts below dir, in a mount namespace that ends with the thread of its goroutine.
func try(dir string) trial {
	result := make(chan trial)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		var t trial
		if t.failed = isolate(); t.failed == nil {
			t.failed = t.run(dir)
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
	t.erofs = unix.Mount(at("metadata"), at("tree"), "erofs", unix.MS_RDONLY, "device="+at("device"))
	if t.erofs == nil {
		defer unix.Unmount(at("tree"), unix.MNT_DETACH) // the directory is removed next
	}
	layers := "lowerdir=" + at("tree") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if t.overlay = unix.Mount("overlay", at("root"), "overlay", 0, layers); t.overlay == nil {
		t.overlay = unix.Unmount(at("root"), 0)
	}
	t.tryFUSE(at("devices"))
	return nil
}

func (t *trial) tryFUSE(dir string) {
	server, err := fuse.Mount(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.fuse = err
		return
	}
	t.resends = server.State().Resends()
	t.fuse = errors.Join(unix.Unmount(dir, unix.MNT_DETACH), server.Detach())
}
