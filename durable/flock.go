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
