package mount

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LazyMount says on which node's tree a file lies: where it is mounted, or the metadata
// image of the mount. It is "" for a file that no node serves. A tree is known also as a
// lower layer of an overlay, as the root of a container has it, and in that container's
// mount namespace.
func LazyMount(path string) (tree string, err error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &stat); err != nil {
		return "", fmt.Errorf("find the mount of %s: %w", path, err)
	}
	id := strconv.FormatUint(stat.Mnt_id, 10)
	err = eachMount(func(m mountEntry) {
		if m.id == id {
			tree = m.tree()
		}
	})
	if err != nil {
		return "", fmt.Errorf("find the mount of %s: %w", path, err)
	}
	return tree, nil
}

// tree returns what names the tree that a mount shows, or "" if it shows none.
func (m mountEntry) tree() string {
	switch m.kind {
	case "erofs":
		source := m.source
		if strings.HasPrefix(source, loopPrefix) {
			source = backing(source)
		}
		dir := filepath.Dir(source)
		if isLocalSource(source) {
			dir = filepath.Dir(dir)
		}
		if isTree(dir) && filepath.Base(filepath.Dir(dir)) == "trees" {
			return source
		}
	case "overlay":
		for option := range strings.SplitSeq(m.options, ",") {
			name, value, _ := strings.Cut(option, "=")
			if strings.TrimSuffix(name, "+") != "lowerdir" { // newer kernels write lowerdir+= for each layer
				continue
			}
			for dir := range strings.SplitSeq(unescape(value), ":") {
				if isTree(dir) && filepath.Base(filepath.Dir(dir)) == "mounts" {
					return dir
				}
			}
		}
	}
	return ""
}
