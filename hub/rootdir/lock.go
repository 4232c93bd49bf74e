package rootdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Lock is the locked file of a hub's directory.
type Lock struct{ *os.File }

// Close unlocks the directory. Closing the file does not suffice: a child process has it, too, from
// its fork until its exec.
func (l Lock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}

// Prepare makes the hub's directory and locks it. Closing the lock, or the end of the process,
// unlocks the directory.
func Prepare(root string) (lock Lock, err error) {
	for _, dir := range []string{root, Registry(root)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return lock, fmt.Errorf("make the hub's directory: %w", err)
		}
	}
	lock, err = newLock(filepath.Join(root, LockName))
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return lock, fmt.Errorf("another hub runs in %s: end it, or choose another directory with --root", root)
	}
	return lock, err
}

// newLock makes and locks a file. If another process has locked it, the error is EWOULDBLOCK.
func newLock(path string) (lock Lock, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return lock, fmt.Errorf("lock the hub's directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // it has no data
		return lock, fmt.Errorf("lock %s: %w", path, err)
	}
	return Lock{file}, nil
}

// LockBucket makes and locks the file bucket.lock in a directory that is a bucket. If another
// process has locked it, the error is EWOULDBLOCK.
func LockBucket(dir string) (Lock, error) { return newLock(filepath.Join(dir, "bucket.lock")) }
