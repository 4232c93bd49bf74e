package durable

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// flockInterval is the time between two attempts to lock a file.
const flockInterval = 20 * time.Millisecond

// Flock locks a file as flock(2) does with operation how, or gives up when ctx is done. The lock is
// released with the file.
func Flock(ctx context.Context, file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(flockInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// LockDir locks a directory against other callers of LockDir, or gives up when ctx is done. The
// lock lasts until unlock is called, or the process ends.
func LockDir(ctx context.Context, path string) (unlock func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := Flock(ctx, dir, unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return func() { dir.Close() }, nil
}
