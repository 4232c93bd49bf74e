// Layertar writes the upper directory of an overlay mount as an OCI layer:
//
//	layertar LOWER[:LOWER...] UPPER > layer.tar
//
// The directories LOWER are below UPPER, topmost first, as in the mount option lowerdir.
// containerd's archive.ChangeWriter writes the entries. So the layer is like a layer of a client
// that builds images with containerd: it has times in whole seconds, and no xattrs but
// security.capability.
//
// Layertar does not check that UPPER comes from a mount with redirect_dir=off, metacopy=off and
// index=off. With other values of these options, the upper directory lacks some of the changes.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/archive"
	changes "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: layertar LOWER[:LOWER...] UPPER > layer.tar")
		os.Exit(2)
	}
	if err := writeLayer(os.Stdout, filepath.SplitList(os.Args[1]), os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "layertar:", err)
		os.Exit(1)
	}
}

// writeLayer writes the entries of upper in lexical order, so that the same directory gives the
// same tar. It does not use containerd's own walk of an upper directory (continuity's
// DiffDirChanges): that function follows links when it looks for a deleted file, and so writes the
// whiteout of a dangling link as a device 0/0.
func writeLayer(w io.Writer, lowers []string, upper string) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	layer := archive.NewChangeWriter(buffered, upper)
	err := filepath.WalkDir(upper, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == upper {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, upper)
		if isWhiteout(info) {
			return layer.HandleChange(changes.ChangeKindDelete, name, nil, nil)
		}
		if err := layer.HandleChange(changes.ChangeKindModify, name, info, nil); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		opaque, err := hidesLower(lowers, path, name, info)
		if err != nil || !opaque {
			return err
		}
		// The ChangeWriter puts .wh. before the last element: this becomes .wh..wh..opq.
		return layer.HandleChange(changes.ChangeKindDelete, name+"/.wh..opq", nil, nil)
	})
	if err != nil {
		return fmt.Errorf("walk %s: %w", upper, err)
	}
	if err := layer.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// isWhiteout reports whether an entry is a whiteout of overlayfs: the lower entry with the same
// name was deleted.
func isWhiteout(info fs.FileInfo) bool {
	return info.Mode()&fs.ModeCharDevice != 0 && info.Sys().(*syscall.Stat_t).Rdev == 0
}

// hidesLower reports whether a directory is opaque and hides a lower directory. Overlayfs also
// marks new directories as opaque, to save a lookup, but these need no marker in the layer.
func hidesLower(lowers []string, path, name string, info fs.FileInfo) (bool, error) {
	if !info.IsDir() {
		return false, nil
	}
	value := make([]byte, 8)
	size, err := unix.Lgetxattr(path, "trusted.overlay.opaque", value)
	if errors.Is(err, unix.ENODATA) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read opaque mark of %s: %w", name, err)
	}
	if string(value[:size]) != "y" {
		return false, nil
	}
	for _, lower := range lowers {
		if below, err := os.Lstat(filepath.Join(lower, name)); err == nil && below.IsDir() {
			return true, nil
		}
	}
	return false, nil
}
