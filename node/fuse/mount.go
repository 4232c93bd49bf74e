package fuse

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// minMinor is the oldest protocol whose wire structs are those used here:
	// that of Linux 5.4. All kernels that can mount a tree are newer.
	minMinor = 31

	// maxBackground is how many reads the kernel sends before it makes the processes that need
	// further ones wait. That limit knows no devices (with its default, 12, readers stuck on
	// one stop the readers of all), so the server answers some reads before it is reached
	// (maxUnanswered). While fewer reads are unanswered the window is smaller.
	maxBackground = 1 << 14

	// initTimeout bounds the wait for the kernel's first request, statTimeout
	// that for whoever serves what is already mounted.
	initTimeout = 10 * time.Second
	statTimeout = 5 * time.Second

	// unmountPause is the time after which a directory that is busy is unmounted again.
	unmountPause = 10 * time.Millisecond

	// wanted are the features that are asked for: several reads of a file at a
	// time, of up to maxRead, look-ups in parallel, an error that tells an
	// aborted connection from an unmounted one, and resending.
	wanted = fuse.CAP_ASYNC_READ | fuse.CAP_ASYNC_DIO | fuse.CAP_MAX_PAGES | fuse.CAP_PARALLEL_DIROPS |
		fuse.CAP_ABORT_ERROR | fuse.CAP_INIT_EXT | fuse.CAP_HAS_RESEND
)

// Mount mounts a new FUSE file system on the directory dir, for root alone, and
// returns its server. Nothing is served before Serve.
//
// No one but root can use the files, and nobody else needs to: the kernel reads
// a device with the rights of the process that mounted the tree.
//
// What a server left there that died with its connection is taken away first.
//
// Without resend the kernel is taken for one that cannot resend requests.
func Mount(dir string, resend bool, log *slog.Logger) (*Server, error) {
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
	// Only now: a descriptor that Go's poller watches before it is a connection
	// never becomes readable.
	conn := os.NewFile(uintptr(fd), "/dev/fuse")
	state, err := initialise(conn, resend)
	if err != nil {
		err = fmt.Errorf("initialise FUSE on %s: %w", dir, err)
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

func mountHint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return " (this needs root)"
	}
	return ""
}

// removeDead takes FUSE mounts away from dir whose connections are gone. They
// are detached, because trees may still be mounted over their devices; each
// read of those fails already, and will.
func removeDead(dir string) error {
	for {
		result := make(chan error, 1)
		go func() {
			var stat unix.Statfs_t
			err := unix.Statfs(dir, &stat)
			if err == nil && stat.Type == unix.FUSE_SUPER_MAGIC {
				err = errors.New("a FUSE file system is already mounted there: does another node run with this root directory?")
			}
			result <- err
		}()
		select {
		case err := <-result:
			if !errors.Is(err, unix.ENOTCONN) {
				return err
			}
		case <-time.After(statTimeout):
			return fmt.Errorf("what is mounted there does not answer within %v: somebody holds its connection (a keeper?) and does not serve it", statTimeout)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("take away a dead mount: %w", err)
		}
	}
}

// initialise answers the kernel's first request, INIT. There is one in a
// connection's life, however many servers it sees.
func initialise(conn *os.File, resend bool) (State, error) {
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
	features := uint64(wanted)
	if !resend {
		features &^= fuse.CAP_HAS_RESEND
	}
	out, state, err := negotiate(req, features, os.Getpagesize())
	if err != nil {
		return State{}, err
	}
	if _, err := conn.Write(reply(req.Unique, 0, wire(&out))); err != nil {
		return State{}, fmt.Errorf("answer the kernel's INIT: %w", err)
	}
	return state, nil
}

// negotiate answers what the kernel offers, of which features are asked for. The kernel's pages
// have kernelPage bytes.
func negotiate(req request, features uint64, kernelPage int) (fuse.InitOut, State, error) {
	if req.Opcode != opInit {
		return fuse.InitOut{}, State{}, fmt.Errorf("%w: opcode %d where INIT belongs", errMalformed, req.Opcode)
	}
	in, err := decode[fuse.InitIn](req.bytes)
	if err != nil {
		return fuse.InitOut{}, State{}, err
	}
	if in.Major != 7 || in.Minor < minMinor {
		return fuse.InitOut{}, State{}, fmt.Errorf("the kernel speaks FUSE %d.%d, 7.%d is needed (Linux 5.4)", in.Major, in.Minor, minMinor)
	}
	state := State{Minor: in.Minor, Flags: in.Flags64() & features, MaxPages: uint16(maxRead / kernelPage)}
	if state.Flags&fuse.CAP_MAX_PAGES == 0 {
		state.MaxPages = 32 // what kernels do that do not ask
	}
	out := fuse.InitOut{
		Major: 7, Minor: in.Minor, Flags: uint32(state.Flags), Flags2: uint32(state.Flags >> 32),
		MaxBackground: maxBackground, CongestionThreshold: maxBackground,
		// Nothing is written. The kernel's least, so that its requests stay
		// below requestSize.
		MaxWrite: pageSize, MaxPages: state.MaxPages, MaxReadAhead: in.MaxReadAhead, TimeGran: 1,
	}
	return out, state, nil
}

// Unmount unmounts the directory. While it is in use it is tried again until patience
// is over, for the kernel lets go of a device a moment after the tree over it was
// unmounted, and who asks something of the mount just now holds it until he has his
// answer: so it is best done while Serve runs. If it fails, EBUSY among the reasons, the server goes on.
// That nothing is mounted is no error.
func (s *Server) Unmount(patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(unmountPause) {
		err := unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // these: not mounted
			return nil
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", s.dir, err)
		case time.Now().After(end):
			return fmt.Errorf("unmount %s: %w (trees are still mounted over its devices: unmount them first)", s.dir, err)
		}
	}
}

// Detach closes the connection and leaves the mount. It lives on as long as
// somebody holds a descriptor of the connection (Kept); without one, every read
// fails from then on.
func (s *Server) Detach() error {
	if err := s.conn.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the FUSE connection of %s: %w", s.dir, err)
	}
	if err := s.control.close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the FUSE control file of %s: %w", s.dir, err)
	}
	s.mu.Lock()
	served := s.served
	s.mu.Unlock()
	var err error
	if s.journal != nil {
		err = s.journal.file.Close()
		if !served { // otherwise Serve does, once nobody needs it
			err = errors.Join(err, s.journal.close())
		}
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the journal of %s: %w", s.dir, err)
	}
	if err := s.buffers.freeSpare(); err != nil {
		return fmt.Errorf("free the buffers of %s: %w", s.dir, err)
	}
	return nil
}
