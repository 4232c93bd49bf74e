package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
)

// lockFile is locked while an operation changes the machine, and says which one. Only root can open
// it, and so lock it. It is not below the directory that a removal removes.
const lockFile = "/run/lighter-install.lock"

// lockTimeout bounds the wait for another operation. The caller tries again later.
const lockTimeout = time.Minute

// maxHolder bounds what is read from the file.
const maxHolder = 200

// lock excludes other operations on this machine until unlock is called, or this process ends.
func (h *Host) lock(ctx context.Context, operation string) (unlock func(), err error) {
	file, err := os.OpenFile(h.Machine.Path(lockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if err := durable.Flock(ctx, file, unix.LOCK_EX); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(file, maxHolder)) // empty: the holder has just begun
		return nil, errors.Join(fmt.Errorf("wait for another run of lighter on this machine (%s): %w", holder, err),
			file.Close())
	}
	// It only helps an operator.
	_ = file.Truncate(0)
	_, _ = fmt.Fprintf(file, "process %d, %s since %s", os.Getpid(), operation, time.Now().Format(time.DateTime))
	return func() { file.Close() }, nil
}
