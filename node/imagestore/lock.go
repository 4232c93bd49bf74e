package imagestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"lighter/sleep"
)

// writerSize is the size of the value, in a lock file, that each change of the locked file
// replaces.
const writerSize = 64

// locked holds a lock file against readers.
type locked struct{ file *os.File }

// lock locks a file. A reader that does not release it in time is ignored: each file has its old or
// its new contents in any case, and any user may hold such a lock.
func lock(ctx context.Context, path string) (*locked, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, err
	}
	if err := file.Chmod(0o644); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		whole := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
		err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &whole)
		if err == nil || ctx.Err() != nil {
			return &locked{file}, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		sleep.For(ctx, lockPause)
	}
}

// lockPatience bounds the wait for readers, and lockPause is the pause between two attempts.
const (
	lockPatience = 10 * time.Second
	lockPause    = 10 * time.Millisecond
)

// changed tells long-running readers that the locked file has changed.
func (l *locked) changed() error {
	value := make([]byte, writerSize)
	_, _ = rand.Read(value) // never fails
	_, err := l.file.WriteAt(value, 0)
	return err
}

func (l *locked) unlock() error { return l.file.Close() }
