package fuse

import (
	"errors"

	"golang.org/x/sys/unix"
)

// What a request can be told besides an answer. Everything else that goes
// wrong is an input/output error to the kernel.
var (
	// errNoDevice: nothing has that name.
	errNoDevice = errors.New("no such device")
	// errRemoved: the kernel knows the file, the server does not (any more).
	// The kernel then looks the name up again where it has one, and finds that
	// it is gone.
	errRemoved = errors.New("the device was removed")
	// errInterrupted: the process that waited got a signal.
	errInterrupted = errors.New("interrupted")
	// errReadOnly: the file was opened for writing.
	errReadOnly = errors.New("devices are read-only")
	// errNotImplemented: the kernel need not ask again.
	errNotImplemented = errors.New("not implemented")
	// errDetached: this server gives the connection up, and the request is its
	// successor's.
	errDetached = errors.New("the server gives up the connection")
	// errOverloaded: more reads wait than the server keeps.
	errOverloaded = errors.New("too many reads are waiting")
	// errTooLate: no answer came within readDeadline.
	errTooLate = errors.New("no answer in time")
)

// errno is the one place where errors become what a process sees.
func errno(err error) unix.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInterrupted):
		return unix.EINTR
	case errors.Is(err, errNoDevice):
		return unix.ENOENT
	case errors.Is(err, errRemoved):
		return unix.ESTALE
	case errors.Is(err, errReadOnly):
		return unix.EROFS
	case errors.Is(err, errNotImplemented):
		return unix.ENOSYS
	default:
		return unix.EIO
	}
}
