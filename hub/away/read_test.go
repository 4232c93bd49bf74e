package away

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

// answered is an error about an HTTP status.
type answered int

func (a answered) Error() string       { return fmt.Sprint("status ", int(a)) }
func (a answered) HTTPStatusCode() int { return int(a) }

// Errors that an outage also causes do not last, nor do those that a full disk causes.
func TestIsLasting(t *testing.T) {
	for want, errs := range map[bool][]error{
		true: {syscall.EIO, &fs.PathError{Op: "read", Path: "a", Err: syscall.EIO}, syscall.EACCES, syscall.EUCLEAN,
			answered(403), fmt.Errorf("read: %w", answered(400))},
		false: {nil, errors.New("broken"), syscall.ENOSPC, syscall.EDQUOT, syscall.ETIMEDOUT, syscall.ESTALE,
			syscall.EMFILE, syscall.ENOENT, syscall.ECONNREFUSED, answered(404), answered(408), answered(429),
			answered(500), answered(503), answered(507), answered(200)},
	} {
		for _, err := range errs {
			if IsLasting(err) != want {
				t.Errorf("%v lasts: %v, want %v", err, !want, want)
			}
		}
	}
}

// OneRead finds a ReadError in an error that is marked, and only there.
func TestOneRead(t *testing.T) {
	read := &ReadError{Err: syscall.EIO}
	marked := fmt.Errorf("layer 1: %w: %w", errAway, read)
	if got := OneRead(marked); got != read || !errors.Is(marked, syscall.EIO) {
		t.Errorf("%v: got %v, want the error of the read, with its cause", marked, got)
	}
	for _, err := range []error{nil, errAway, read, Final(marked), fmt.Errorf("write: %w: %w", errAway, syscall.EIO)} {
		if got := OneRead(err); got != nil {
			t.Errorf("%v: got %v, want none", err, got)
		}
	}
}
