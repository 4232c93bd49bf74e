package differ

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// A topDir is the top directory of an overlay: the upper directory of an active snapshot, or the
// first lower directory of a view of a committed one. It has whatever differs from the directories
// below it. It is read directly, not through the overlay.
type topDir struct {
	path   string
	xattrs string // beginning of the names of overlayfs's own xattrs
}

// An overlay is what the mounts of a snapshot or of a view say.
type overlay struct {
	layers    []string // topmost first
	writable  bool     // layers[0] is an upper directory
	userXattr bool
}

// topOf returns the top directory of upper, if lower is the merged view of all directories below
// it.
func (d *Differ) topOf(lower, upper []mount.Mount) (topDir, error) {
	above, err := d.parse(upper)
	if err != nil {
		return topDir{}, err
	}
	below, err := d.parse(lower)
	switch {
	case err != nil:
		return topDir{}, err
	case below.writable:
		return topDir{}, refuse("the parent can be written to")
	case len(below.layers) == 0 || len(above.layers) == 0 || !slices.Equal(above.layers[1:], below.layers):
		return topDir{}, refuse("the parent is not what is below the snapshot's top directory")
	}
	top := topDir{path: above.layers[0], xattrs: "trusted.overlay."}
	if above.userXattr {
		top.xattrs = "user.overlay."
	}
	if filepath.Base(top.path) != "fs" || filepath.Dir(filepath.Dir(top.path)) != d.dir {
		return topDir{}, refuse(top.path + " is no snapshot of this node")
	}
	return top, nil
}

// parse returns the directories that a mount of containerd combines. It leaves out the empty
// directory that the snapshotter adds to some overlays.
func (d *Differ) parse(mounts []mount.Mount) (o overlay, err error) {
	if len(mounts) != 1 {
		return o, refuse(fmt.Sprintf("%d mounts instead of one", len(mounts)))
	}
	m := mounts[0]
	switch m.Type {
	case "bind":
		o.layers = []string{m.Source}
	case "overlay":
	default:
		return o, refuse("a mount of type " + m.Type)
	}
	var lower []string
	for _, option := range m.Options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "upperdir":
			o.layers, o.writable = []string{value}, true
		case "lowerdir":
			lower = strings.Split(value, ":")
		case "userxattr":
			o.userXattr = true
		case "uidmap", "gidmap":
			return o, refuse("an ID-mapped mount")
		}
	}
	o.layers = slices.DeleteFunc(append(o.layers, lower...), func(dir string) bool {
		return dir == filepath.Join(d.dir, "empty")
	})
	return o, nil
}

// check refuses a directory with marks that only overlayfs can follow: a renamed directory
// (redirect), a file without its contents (metacopy), or whiteouts of another kind than overlayfs
// writes itself.
func (t topDir) check(ctx context.Context) error {
	return filepath.WalkDir(t.path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && (entry.IsDir() || entry.Type().IsRegular()) {
			err = t.checkMarks(path)
		}
		if errors.Is(err, fs.ErrNotExist) && path != t.path { // a running container has deleted it
			return nil
		}
		return err
	})
}

// checkMarks does what check does, for one file or directory.
func (t topDir) checkMarks(path string) error {
	names, err := sysx.LListxattr(path)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("list the xattrs of %s: %w", path, err)
	}
	for _, name := range names {
		switch mark, _ := strings.CutPrefix(name, t.xattrs); mark {
		case "redirect", "metacopy", "whiteout":
			return refuse(fmt.Sprintf("%s has the mark %s of overlayfs", path, mark))
		case "opaque":
			value, err := sysx.LGetxattr(path, name)
			if err != nil {
				return fmt.Errorf("read the opaque mark of %s: %w", path, err)
			}
			if string(value) != "y" || path == t.path {
				return refuse(fmt.Sprintf("%s has the opaque mark %q", path, value))
			}
		}
	}
	return nil
}

// isOpaque reports whether a directory hides the directory of the same name below it.
func (t topDir) isOpaque(dir string) (bool, error) {
	_, err := sysx.LGetxattr(dir, t.xattrs+"opaque")
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the opaque mark of %s: %w", dir, err)
	}
	return true, nil
}
