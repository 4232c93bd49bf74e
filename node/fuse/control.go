package fuse

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// control is a connection's directory in the FUSE control file system, where the kernel reports its
// own view of the connection. The file system need not be mounted anywhere. A nil control knows
// nothing.
type control struct {
	root *os.File // of the control file system
	name string   // of the connection
}

// openControl finds the connection that is mounted on dir.
func openControl(dir string) (*control, error) {
	var stat unix.Statx_t
	// Not stat, which would ask the connection's server: none runs yet.
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, 0, &stat); err != nil {
		return nil, fmt.Errorf("find the FUSE connection of %s: %w", dir, err)
	}
	context, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the FUSE control file system: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("open the FUSE control file system: %w", err)
	}
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, fmt.Errorf("mount the FUSE control file system: %w", err)
	}
	return &control{os.NewFile(uintptr(fd), "fusectl"), strconv.Itoa(int(stat.Dev_minor))}, nil
}

func (c *control) close() error {
	if c == nil {
		return nil
	}
	return c.root.Close()
}

// waiting returns the number of requests that the kernel counts as unanswered, including those that
// it has not sent yet and those that processes are blocked on; -1 if it is unknown.
func (c *control) waiting() int64 {
	count := int64(-1)
	c.file("waiting", unix.O_RDONLY, func(fd int) {
		b := make([]byte, 32)
		n, err := unix.Read(fd, b)
		if err != nil {
			return
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(b[:n])), 10, 64); err == nil {
			count = n // otherwise the connection has ended
		}
	})
	return count
}

// setMaxBackground sets how many background requests may be unanswered before the kernel blocks
// the processes that need more. It fails only if the connection has ended.
func (c *control) setMaxBackground(n int) {
	c.file("max_background", unix.O_WRONLY, func(fd int) {
		_, _ = unix.Write(fd, strconv.AppendInt(nil, int64(n), 10))
	})
}

// file opens one of the connection's control files for fn, if it can be opened.
func (c *control) file(name string, flags int, fn func(fd int)) {
	if c == nil {
		return
	}
	raw, err := c.root.SyscallConn()
	if err != nil {
		return
	}
	fd := -1
	open := func(root uintptr) {
		fd, err = unix.Openat(int(root), c.name+"/"+name, flags|unix.O_CLOEXEC, 0)
	}
	if closed := raw.Control(open); closed != nil || err != nil { // not Fd, as close may run meanwhile
		return
	}
	defer unix.Close(fd)
	fn(fd)
}

// stall measures how long requests have waited in the kernel while the server read none.
type stall struct {
	received int64     // READs received, at the last check
	since    time.Time // zero: there is no stall
}

// check updates the stall. received is the number of READs received so far. unread says whether the
// kernel has requests that the server has not received.
func (s *stall) check(now time.Time, received int64, unread bool) {
	switch {
	case !unread || received != s.received:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	s.received = received
}

// checkKernel compares the kernel's view of the connection with the server's.
func (s *Server) checkKernel(now time.Time) {
	inKernel := s.control.waiting()
	s.mu.Lock()
	known := len(s.reads)
	s.stall.check(now, s.received.Load(), inKernel > int64(known))
	s.mu.Unlock()
	s.window.repeat(known)
}
