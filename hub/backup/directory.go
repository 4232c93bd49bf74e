package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lighter/hub/rootdir"
)

// checkDirectory returns an error unless dir does not exist, is empty, or has an earlier backup,
// complete or not. dir and the hub's directory, root, must not overlap. A backup of the hub
// replaces and deletes files in dir. So all files there must be those of a backup.
func checkDirectory(root, dir string) error {
	if overlap, err := overlap(root, dir); err != nil {
		return err
	} else if overlap {
		return errors.New("the two directories are the same, or one is in the other: " +
			"choose another directory for the backup")
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	if slices.Contains(names, rootdir.LockName) {
		return errors.New("a hub runs or ran there: choose another directory for the backup")
	}
	if slices.Contains(names, backupFile) {
		return nil
	}
	if i := slices.IndexFunc(names, isForeign); i >= 0 {
		return fmt.Errorf("the directory has files that are not of a backup (%s): choose an empty one", names[i])
	}
	return nil
}

// isForeign reports whether neither an incomplete backup nor an empty disk has a file of this name.
func isForeign(name string) bool {
	known := []string{"objects", "registry", "domains", "lost+found"}
	return !slices.Contains(known, name) && !strings.HasPrefix(name, "catalog.db") &&
		!strings.HasPrefix(name, "hub.key")
}

// overlap reports whether two directories are the same, or one is in the other.
func overlap(a, b string) (bool, error) {
	a, errA := resolved(a)
	b, errB := resolved(b)
	within := func(a, b string) bool {
		return strings.HasPrefix(a+"/", strings.TrimSuffix(b, "/")+"/")
	}
	return within(a, b) || within(b, a), errors.Join(errA, errB)
}

// resolved returns the absolute path without symbolic links of a directory that may not exist yet.
func resolved(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) && dir != "/" {
		parent, err := resolved(filepath.Dir(dir))
		return filepath.Join(parent, filepath.Base(dir)), err
	}
	return real, err
}
