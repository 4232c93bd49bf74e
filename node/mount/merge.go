package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/node/trees"
)

// EscapeOverlay escapes what the options of an overlay treat specially in a path.
var EscapeOverlay = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`)

// MergedDir returns a directory, below root, for mounts that Merge makes. SplitAll undoes all
// mounts with one name.
func MergedDir(root, name string) string { return filepath.Join(root, "merged", name) }

// Merge mounts a mounted tree together with a layer of a few files over it, read-only, and returns
// the mount point, which is below merged. write writes the layer into an empty directory. The layer
// is in memory, and lasts as long as a process uses the mount. Split undoes Merge.
func Merge(merged, root, tree string, write func(dir string) error) (point string, err error) {
	if err := os.MkdirAll(merged, 0o700); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(merged, "")
	if err != nil {
		return "", err
	}
	layer, point := filepath.Join(dir, "layer"), filepath.Join(dir, "root")
	err = errors.Join(os.Mkdir(layer, 0o700), os.Mkdir(point, 0o700))
	if err == nil {
		err = merge(root, tree, layer, point, write)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("mount a layer over %s: %w", tree, err), removeMerged(dir))
	}
	return point, nil
}

func merge(root, tree, layer, point string, write func(dir string) error) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("lighter", layer, "tmpfs", flags, "mode=0755"); err != nil {
		return err
	}
	if err := write(layer); err != nil {
		return err
	}
	// The source is a tree's, as for the mount of a tree: Bound and Unbind look at it.
	source := filepath.Join(trees.Dir(root), filepath.Base(tree))
	options := fmt.Sprintf("lowerdir=%s:%s", EscapeOverlay.Replace(layer), EscapeOverlay.Replace(tree))
	if err := unix.Mount(source, point, "overlay", flags|unix.MS_RDONLY, options); err != nil {
		return err
	}
	return unix.Unmount(layer, unix.UMOUNT_NOFOLLOW) // the overlay keeps the file system
}

// Split detaches a mount that Merge has made. Processes that use it keep it.
func Split(point string) error { return removeMerged(filepath.Dir(point)) }

// removeMerged detaches what is mounted in a directory of Merge, and removes the directory.
func removeMerged(dir string) error {
	for _, name := range []string{"root", "layer"} {
		point := filepath.Join(dir, name)
		if err := detach(point); err != nil {
			return err
		}
		if err := os.Remove(point); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Remove(dir)
}

// SplitAll undoes each Merge below merged, also those of previous daemons.
func SplitAll(merged string) error {
	entries, err := os.ReadDir(merged)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		err = errors.Join(err, removeMerged(filepath.Join(merged, entry.Name())))
	}
	if err != nil {
		return fmt.Errorf("remove the layers over trees: %w", err)
	}
	return nil
}
