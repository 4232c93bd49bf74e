package away

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"syscall"
	"time"
)

// ReadError is an error of a read of one object, with a cause that may last (IsLasting). Either
// only this object cannot be read, or its whole store: Works tells them apart. Its text is that of
// the store's error.
type ReadError struct {
	Object string // for users, like "blob sha256:…"
	Remedy string // what a user can do if only this object cannot be read
	Err    error  // of the store
	// Works returns an error if the store cannot write and read another object. It may take up to
	// half a minute.
	Works func(ctx context.Context) error
}

func (e *ReadError) Error() string { return e.Err.Error() }
func (e *ReadError) Unwrap() error { return e.Err }

// OneRead returns the ReadError of a marked error, or nil if there is none.
func OneRead(err error) *ReadError {
	if read := (*ReadError)(nil); Is(err) && errors.As(err, &read) {
		return read
	}
	return nil
}

// lasting are the errors of a file that cannot be read while others can: its bytes or its file
// system are damaged, or the hub may not read it. Others, like ETIMEDOUT, ESTALE or EMFILE, say
// that a file system or this process has no connection or no resources now.
var lasting = []error{syscall.EIO, syscall.EUCLEAN, syscall.EBADMSG, syscall.EACCES, syscall.EPERM, syscall.ELOOP,
	syscall.ENOTDIR, syscall.EISDIR}

// IsLasting reports whether the cause of a failed read may be the object itself, so that the same
// read fails again and again: an error of a file, or an HTTP status that refuses the request, like
// 403. Status 5xx, 408 and 429, broken connections and time-outs are about the server: such a read
// may succeed at any time. After 404 there is nothing to read.
func IsLasting(err error) bool {
	var answer interface{ HTTPStatusCode() int } // as in the SDK of AWS
	if !errors.As(err, &answer) {
		return slices.ContainsFunc(lasting, func(one error) bool { return errors.Is(err, one) })
	}
	switch status := answer.HTTPStatusCode(); status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return status >= 400 && status < 500
	}
}

// Probe finds out whether a store works, for ReadError.Works. It writes a small file, reads it, and
// returns an error unless it has read what it has written. A write reaches the disk, while a file
// that was read before may be in memory, though the disk has failed.
func Probe(
	ctx context.Context, write func(context.Context, []byte) error, read func(context.Context) ([]byte, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	content := []byte("The hub writes and reads this file when it cannot read another one.\n")
	if err := write(ctx, content); err != nil {
		return err
	}
	got, err := read(ctx)
	if err == nil && !bytes.Equal(got, content) {
		err = errors.New("the file that was just written has other bytes")
	}
	return err
}

const probeTimeout = 30 * time.Second
