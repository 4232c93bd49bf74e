package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// control is a connection's directory in the FUSE control file system, where the kernel reports its
// own view of the connection. The file system need not be mounted anywhere. A nil control means
// that the file system is not available: its methods report unknown values and set nothing.
type control struct {
	root       *os.File // root directory of the control file system
	name       string   // name of the connection's directory
	background *os.File // the connection's file max_background
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
	c := &control{root: os.NewFile(uintptr(fd), "fusectl"), name: strconv.Itoa(int(stat.Dev_minor))}
	background, err := unix.Openat(fd, c.name+"/max_background", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		err = fmt.Errorf("open max_background of the FUSE connection of %s: %w", dir, err)
		return nil, errors.Join(err, c.root.Close())
	}
	c.background = os.NewFile(uintptr(background), "max_background")
	return c, nil
}

func (c *control) close() error {
	if c == nil {
		return nil
	}
	return errors.Join(c.root.Close(), c.background.Close())
}

// waiting returns the number of requests that the kernel counts as unanswered; -1 if it is unknown.
// The number includes requests that the kernel has not sent yet, and requests of processes that the
// kernel blocks until max_background has room. waiting opens the kernel's file at each call,
// because the file cannot be read twice.
func (c *control) waiting() int64 {
	if c == nil {
		return -1
	}
	raw, err := c.root.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	open := func(root uintptr) {
		fd, err = unix.Openat(int(root), c.name+"/waiting", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if closed := raw.Control(open); closed != nil || err != nil { // not Fd: close may run at the same time
		return -1
	}
	defer unix.Close(fd)
	b := make([]byte, 32)
	n, err := unix.Read(fd, b)
	if err != nil {
		return -1
	}
	count, err := strconv.ParseInt(string(bytes.TrimSpace(b[:n])), 10, 64)
	if err != nil {
		return -1 // the connection has ended
	}
	return count
}

// setMaxBackground implements connection. It fails only if the connection has ended.
func (c *control) setMaxBackground(n int) {
	if c != nil {
		_, _ = c.background.Write(strconv.AppendInt(nil, int64(n), 10)) // writes do not move this file's offset
	}
}

// stall measures how long requests have waited in the kernel while the server read none.
type stall struct {
	received int64     // number of READs received until the last check
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

// duration returns how long the stall lasts; 0: there is none.
func (s *stall) duration(now time.Time) time.Duration {
	if s.since.IsZero() {
		return 0
	}
	return now.Sub(s.since)
}

// checkKernel compares the kernel's view of the connection with the server's.
func (s *Server) checkKernel(now time.Time) {
	inKernel := s.control.waiting()
	s.mu.Lock()
	known := len(s.reads)
	s.stall.check(now, s.received.Load(), inKernel > int64(known))
	stalled := s.stall.duration(now)
	s.mu.Unlock()
	s.window.check(inKernel, known, stalled)
}
