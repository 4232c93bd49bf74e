//go:build e2e

package hub_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lighter/hub/backup"
	"lighter/test/testkit/faultfs"
)

// A backup gets its catalog only after the directories of all copied files were synced. If a
// directory cannot be synced, the backup is not complete.
func TestBackupIsDurable(t *testing.T) {
	t.Parallel()
	h := startLocalHub(t)
	h.pushReady("a:1", image(lowerTar, upperTar))
	h.idle()
	for _, part := range []string{"objects", "registry"} {
		dir := filepath.Join(t.TempDir(), "new", "backup")
		disk, backing := faultyDir(t, filepath.Join(dir, part))
		disk.Fail(syscall.EIO, faultfs.SyncDir)
		if _, err := backup.Make(t.Context(), h.config.Root, dir, silent); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: the backup ended with %v, want EIO", part, err)
		}
		for _, name := range []string{"catalog.db", "backup.json"} {
			if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the incomplete backup has a %s (%v)", part, name, err)
			}
		}
		disk.Fail(0, faultfs.SyncDir)
		again := makeBackup(h, dir) // all objects have been copied, but not synced
		if part == "objects" && again.Copied != 0 {
			t.Errorf("the second backup: %+v, want no object copied again", again)
		}
		if got, want := disk.SyncedDirs(), dirs(t, backing); !slices.Equal(got, want) {
			t.Errorf("%s: the directories %q were synced, want %q", part, got, want)
		}
		restored(h, dir).wantClean("after the restore", "a:1")
	}
}

// faultyDir mounts a faulty file system at a directory until the test ends. Its files are in the
// directory backing.
func faultyDir(t *testing.T, dir string) (disk *faultfs.FS, backing string) {
	t.Helper()
	backing = t.TempDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	disk, err := faultfs.Mount(backing, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(dir); err != nil {
			t.Error(err)
		}
	})
	return disk, backing
}

// dirs returns the paths of a directory and all directories below it, relative to the directory,
// sorted.
func dirs(t *testing.T, dir string) (all []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, strings.TrimPrefix(strings.TrimPrefix(path, dir), "/"))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}
