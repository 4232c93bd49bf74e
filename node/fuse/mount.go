package fuse

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Mount mounts a new FUSE file system on the directory dir, and returns its server. The server
// answers no request before Serve is called. Only root can use the files. That is enough for all
// containers, because the kernel reads a device with the rights of the process that mounted the
// tree.
//
// Mount first removes dead mounts of previous servers.
func Mount(dir string, log *slog.Logger) (*Server, error) {
	if err := removeDead(dir); err != nil {
		return nil, fmt.Errorf("mount FUSE on %s: %w", dir, err)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse (this needs root, and FUSE in the kernel): %w", err)
	}
	const flags = unix.MS_RDONLY | unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", fd, unix.S_IFDIR)
	if err := unix.Mount("lighter", dir, "fuse.lighter", flags, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount FUSE on %s: %w%s", dir, err, mountHint(err)), unix.Close(fd))
	}
	// os.NewFile makes Go's poller watch the descriptor. A descriptor that is watched before it is
	// a connection, that is, before the mount, never becomes readable.
	conn := os.NewFile(uintptr(fd), "/dev/fuse")
	state, err := initialize(conn)
	if err != nil {
		err = fmt.Errorf("initialize FUSE on %s: %w", dir, err)
		return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), conn.Close())
	}
	var j *journal
	if !state.Resends() {
		if j, err = newJournal(journalSlots); err != nil {
			return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), conn.Close())
		}
	}
	return newServer(conn, j, dir, state, log)
}

// errMounted says that a FUSE file system on the directory still works.
var errMounted = errors.New("a FUSE file system is already mounted there: " +
	"does another node run with this root directory?")

func mountHint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return " (this needs root)"
	}
	return ""
}

// removeDead removes the FUSE mounts on dir whose connections have ended. It detaches the mounts,
// because trees that use their devices may still be mounted. Such a tree's device cannot be read
// any more.
func removeDead(dir string) error {
	for {
		result := make(chan error, 1)
		go func() {
			var stat unix.Statfs_t
			err := unix.Statfs(dir, &stat)
			if err == nil && stat.Type == unix.FUSE_SUPER_MAGIC {
				err = errMounted
			}
			result <- err
		}()
		select {
		case err := <-result:
			if !errors.Is(err, unix.ENOTCONN) {
				return err
			}
		case <-time.After(statTimeout):
			return fmt.Errorf("the file system that is mounted there does not answer within %v: "+
				"does a keeper hold its connection while no node runs?", statTimeout)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("remove a dead mount: %w", err)
		}
	}
}

// initialize answers the kernel's first request, INIT. A connection has only one INIT, even if
// several servers serve it one after the other.
func initialize(conn *os.File) (State, error) {
	if err := conn.SetReadDeadline(time.Now().Add(initTimeout)); err != nil {
		return State{}, err
	}
	b := make([]byte, requestSize)
	n, err := conn.Read(b)
	if err != nil {
		return State{}, fmt.Errorf("read the kernel's INIT: %w", err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return State{}, err
	}
	req, err := parseRequest(b[:n])
	if err != nil {
		return State{}, err
	}
	out, state, err := negotiate(req, os.Getpagesize())
	if err != nil {
		return State{}, err
	}
	if _, err := conn.Write(reply(req.Unique, 0, wire(&out))); err != nil {
		return State{}, fmt.Errorf("answer the kernel's INIT: %w", err)
	}
	return state, nil
}

// negotiate returns the answer to INIT, with those of the wanted features that the kernel offers,
// and the state of the connection. kernelPage is the size of the kernel's pages, in bytes.
func negotiate(req request, kernelPage int) (gofuse.InitOut, State, error) {
	if req.Opcode != opInit {
		return gofuse.InitOut{}, State{}, fmt.Errorf("%w: opcode %d instead of INIT", errMalformed, req.Opcode)
	}
	in, err := decode[gofuse.InitIn](req.bytes)
	if err != nil {
		return gofuse.InitOut{}, State{}, err
	}
	if in.Major != 7 || in.Minor < minMinor {
		return gofuse.InitOut{}, State{}, fmt.Errorf("the kernel speaks FUSE %d.%d, but 7.%d is needed (Linux 5.4)",
			in.Major, in.Minor, minMinor)
	}
	state := State{Minor: in.Minor, Flags: in.Flags64() & wanted, MaxPages: uint16(maxRead / kernelPage)}
	if state.Flags&gofuse.CAP_MAX_PAGES == 0 {
		state.MaxPages = 32 // fixed in such kernels
	}
	out := gofuse.InitOut{
		Major: 7, Minor: in.Minor, Flags: uint32(state.Flags), Flags2: uint32(state.Flags >> 32),
		MaxBackground: maxBackground, CongestionThreshold: maxBackground,
		// Nothing is ever written. So MaxWrite is the kernel's minimum, and requests fit into
		// requestSize.
		MaxWrite: pageSize, MaxPages: state.MaxPages, MaxReadAhead: in.MaxReadAhead, TimeGran: 1,
	}
	return out, state, nil
}

// Unmount unmounts the directory. While the directory is busy, Unmount tries again until timeout:
// the kernel releases a device a moment after its tree was unmounted, and each pending request
// keeps the mount busy. So Unmount is best called while Serve runs. If Unmount fails, with EBUSY
// for example, the server continues. If nothing is mounted, Unmount does nothing.
func (s *Server) Unmount(timeout time.Duration) (err error) {
	s.unmounting.Store(true)
	defer func() { s.unmounting.Store(err == nil) }()
	for end := time.Now().Add(timeout); ; time.Sleep(unmountPause) {
		err := unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // the last two: not mounted
			return nil
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", s.dir, err)
		case time.Now().After(end):
			return fmt.Errorf("unmount %s: %w (unmount the trees over its devices first)", s.dir, err)
		}
	}
}

// Detach closes the connection and leaves the mount. The mount stays alive while another process
// has a descriptor of the connection (Descriptors). If no process has such a descriptor, all later
// reads fail.
func (s *Server) Detach() error {
	s.mu.Lock()
	served := s.served
	s.mu.Unlock()
	errs := []error{s.conn.Close(), s.control.close(), s.buffers.freeSpare()}
	if s.journal != nil {
		errs = append(errs, s.journal.file.Close())
		if !served { // otherwise Serve unmaps the journal when it ends
			errs = append(errs, s.journal.unmap())
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, os.ErrClosed) })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach from the FUSE connection of %s: %w", s.dir, err)
	}
	return nil
}
