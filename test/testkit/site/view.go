package site

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// View mounts the lower layers of the container's root again, without its writable layer. The mount
// point, root, is made in dir, which must be empty. The caller calls unmount.
func (c *Container) View(dir string) (root string, unmount func() error, err error) {
	lower, err := lowerOf(c.Root)
	if err != nil {
		return "", nil, err
	}
	root, empty := filepath.Join(dir, "root"), filepath.Join(dir, "empty")
	if err := errors.Join(os.Mkdir(root, 0o755), os.Mkdir(empty, 0o755)); err != nil {
		return "", nil, err
	}
	if !strings.Contains(lower, ":") {
		lower += ":" + empty // without an upper layer, overlayfs needs two lower layers
	}
	if err := unix.Mount("view", root, "overlay", unix.MS_RDONLY, "index=off,lowerdir="+lower); err != nil {
		return "", nil, fmt.Errorf("mount the layers %s again: %w", lower, err)
	}
	return root, func() error { return unix.Unmount(root, 0) }, nil
}

// lowerOf returns the lower layers of the overlay that is mounted at a directory.
func lowerOf(root string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[1] != root {
			continue
		}
		for _, option := range strings.Split(fields[3], ",") {
			if lower, ok := strings.CutPrefix(option, "lowerdir="); ok {
				return lower, nil
			}
		}
	}
	return "", fmt.Errorf("find the layers of %s: it is not an overlay mount", root)
}
