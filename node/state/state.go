// Package state promises that what a node keeps for its next start is on the
// disk as a whole: after a crash at any moment there is the old or the new, and
// what Replace and Publish have returned from stays. What cannot be cleaned up is
// listed (Leftovers), and stops nobody.
//
// It refuses to know what is kept. Who writes one name from two goroutines at a
// time keeps one of the two, or an error.
package state

import (
	"errors"
	"os"
	"path/filepath"
)

// fresh ends the name of a file that is being written. The next Replace of the
// same name takes what a crash left of it.
const fresh = ".new"

// Replace gives a file, for root alone, new contents.
func Replace(path string, b []byte) error {
	file, err := os.OpenFile(path+fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return rename(path+fresh, path)
}

// Publish gives a finished directory, whose files are synced, its name; or a finished
// file, which takes the place of the one that has it. The two names lie in one
// directory.
func Publish(finished, name string) error {
	if err := syncDir(finished); err != nil {
		return err
	}
	return rename(finished, name)
}

// Discard removes a directory, and never leaves a part of it under its name.
// aside is a name beside it, for what is on its way out. If there is no directory of
// that name, nothing is done.
func Discard(name, aside string) error {
	if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	err := rename(name, aside)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(aside)
}

func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
