package database

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// errNoTemporaryDir means that SQLite's large statements would fail, with the error 6410.
var errNoTemporaryDir = errors.New("SQLite has no directory for temporary files: set the environment variable " +
	"TMPDIR to a directory that the hub may write to")

// temporaryDirs returns where SQLite looks for a directory for temporary files, in its order
// (sqlite.org/tempfiles.html).
func temporaryDirs() []string {
	return []string{os.Getenv("SQLITE_TMPDIR"), os.Getenv("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp", "."}
}

// checkTemporary returns an error if SQLite can write to none of the directories.
func checkTemporary(dirs []string) error {
	if slices.ContainsFunc(dirs, func(dir string) bool {
		info, err := os.Stat(dir)
		return err == nil && info.IsDir() && unix.Access(dir, unix.W_OK|unix.X_OK) == nil
	}) {
		return nil
	}
	return errNoTemporaryDir
}
