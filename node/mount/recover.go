package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"lighter/format/chunk"
)

// Recover puts in order what a former daemon left mounted, before the first
// Mount. Its devices went with it, so its mounts are taken away: containers that
// still use one keep it, and get errors for what is not in memory; whoever
// mounts the tree from now on gets a new one.
func (t *Trees) Recover() error { return removeMounts(t.root) }

// removeMounts takes away the trees that are mounted below root. What somebody
// else has put there stays.
func removeMounts(root string) error {
	dir := filepath.Join(root, "mounts")
	mounts, err := mountPoints(root)
	if err != nil {
		return err
	}
	for point := range mounts {
		if filepath.Dir(point) != dir || !isTree(point) {
			continue
		}
		if err := detach(point); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list the mounts: %w", err)
	}
	for _, entry := range entries {
		if point := filepath.Join(dir, entry.Name()); isTree(point) {
			_ = os.Remove(point) // what is not empty stays, and can be mounted over
		}
	}
	return nil
}

func isTree(path string) bool {
	_, err := chunk.ParseID(filepath.Base(path))
	return err == nil
}

// Abandon removes root and all that is below it, for whoever knows that no
// daemon uses it or ever will: mounts first.
func Abandon(root string) error {
	if _, err := os.Lstat(root); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := removeMounts(root); err != nil {
		return err
	}
	left, err := mountPoints(root)
	if err != nil {
		return err
	}
	for point := range left {
		if point != Devices(root) {
			return fmt.Errorf("remove %s: something is mounted at %s: unmount it first", root, point)
		}
		if err := detach(point); err != nil {
			return err
		}
	}
	return os.RemoveAll(root)
}
