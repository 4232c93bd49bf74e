package mount

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Bind shows a mounted tree at dir as well, read-only. dir must exist.
func Bind(tree, dir string) error {
	if err := unix.Mount(tree, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount at %s: %w", dir, err)
	}
	return nil
}

// Unbind undoes Bind.
func Unbind(dir string) error { return unmount(dir) }
