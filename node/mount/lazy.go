package mount

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"lighter/node/trees"
)

// LazyMount finds the tree that a file is on. It returns the path of the tree's mount or of its
// metadata image, or "" if no node serves the file. If the file is on an overlay, LazyMount looks
// for a tree among the lower layers. So it also works in a container, whose root is an overlay.
func LazyMount(path string) (tree string, err error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &stat); err != nil {
		return "", fmt.Errorf("find the mount of %s: %w", path, err)
	}
	mounts, err := readTable(func(m *mountinfo.Info) (skip, stop bool) {
		return uint64(m.ID) != stat.Mnt_id, false
	})
	if err != nil {
		return "", fmt.Errorf("find the mount of %s: %w", path, err)
	}
	for _, m := range mounts {
		tree = treeOf(m)
	}
	return tree, nil
}

// treeOf returns the path that names the tree of a mount (see LazyMount), or "".
func treeOf(m *mountinfo.Info) string {
	switch m.FSType {
	case "erofs":
		source := m.Source
		if strings.HasPrefix(source, loopPrefix) {
			source = backing(source)
		}
		if trees.IsMetadata(source) {
			return source
		}
	case "overlay":
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			name, value, _ := strings.Cut(option, "=")
			if strings.TrimSuffix(name, "+") != "lowerdir" { // newer kernels write lowerdir+= for each layer
				continue
			}
			for dir := range strings.SplitSeq(unescape(value), ":") {
				if trees.IsTree(dir) && filepath.Base(filepath.Dir(dir)) == "mounts" {
					return dir
				}
			}
		}
	}
	return ""
}

// unescape decodes the octal escapes (\040) of overlayfs's options, which package mountinfo leaves.
func unescape(s string) string {
	if plain, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\042`) + `"`); err == nil {
		return plain
	}
	return s
}
