package fuse

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// control is the kernel's own view of a connection: its directory in the FUSE control file system,
// which need not be mounted anywhere for that.
type control struct {
	root *os.File // of the control file system
	name string   // of the connection
}

// openControl finds the connection that is mounted on dir.
func openControl(dir string) (*control, error) {
	var stat unix.Statx_t
	// Not stat: that asks whoever serves the connection, and nobody does yet.
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
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
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
	if closed := raw.Control(open); closed != nil || err != nil { // not Fd: it may be closed meanwhile
		return
	}
	defer unix.Close(fd)
	fn(fd)
}

// stall is for how long requests have waited in the kernel although the server reads none.
type stall struct {
	taken int64     // READs that the server had read when it was last looked at
	since time.Time // zero: there is none
}

// look is told how many READs the server has read, and whether the kernel has requests that the
// server has not.
func (s *stall) look(now time.Time, taken int64, unread bool) {
	switch {
	case !unread || taken != s.taken:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	s.taken = taken
}

// lookForStall is called at each turn of the watch.
func (s *Server) lookForStall(now time.Time) {
	inKernel := s.control.waiting()
	s.mu.Lock()
	known := len(s.reads)
	s.stall.look(now, s.taken.Load(), inKernel > int64(known))
	s.mu.Unlock()
	s.window.repeat(known)
}
