package fuse

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Errors with a meaning of their own for the kernel or the statistics. For the kernel, every other
// error is an input/output error.
var (
	// errNoDevice: no device has that name.
	errNoDevice = errors.New("no such device")
	// errRemoved: the server no longer has the device. If the kernel knows the file's name, it
	// looks the name up again and finds that it is gone.
	errRemoved = errors.New("the device was removed")
	// errKilled: the waiting process is being killed.
	errKilled = errors.New("the process is being killed")
	// errReadOnly: a process tried to open the file for writing.
	errReadOnly = errors.New("devices are read-only")
	// errNotImplemented: the server does not know the request's opcode. After this error, the
	// kernel does not send most of the optional opcodes again.
	errNotImplemented = errors.New("not implemented")
	// errDetached: this server gives up the connection, and its successor answers the request.
	errDetached = errors.New("the server gives up the connection")
	// errOverloaded: too many reads are queued.
	errOverloaded = errors.New("too many reads are waiting")
	// errTooLate: there was no answer within readDeadline.
	errTooLate = errors.New("no answer in time")
)

// errno maps an error to what the process sees.
func errno(err error) unix.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errKilled):
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
