package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Manager is the service manager that started this process (systemd). It receives reports about
// this process. If the service has a descriptor store, it also holds descriptors for the next
// process. A nil *Manager means that there is no service manager; its Notify does nothing.
type Manager struct {
	socket   string         // NOTIFY_SOCKET
	stores   int            // number of descriptors that the manager can hold
	watchdog time.Duration  // longest time between two reports; 0: none are expected
	kept     map[string]int // descriptors that the manager has passed to this process, by name
	note     *os.File       // shared memory with the note; the manager holds a copy of its descriptor
	held     []byte         // the note of the last successful Keep; nil: there was none
}

// The descriptors that the manager holds are named managedFile and a number, or managedNote for the
// note.
const (
	managedFile = "lighter-"
	managedNote = "lighter-note"
)

// firstPassed is the first descriptor that a manager passes.
const firstPassed = 3

// variables are the environment variables that a manager sets for the process that it starts.
var variables = []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "FDSTORE", "NOTIFY_SOCKET", "WATCHDOG_USEC",
	"WATCHDOG_PID"}

// WithoutManager returns an environment without the variables of a service manager, for a process
// that the manager has not started.
func WithoutManager(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(variables, name)
	})
}

// Environment returns the service manager of this process, or nil. It takes the descriptors that
// the manager has passed. It must be called once, before any child process is started.
//
// See sd_notify(3), sd_listen_fds(3) and FDSTORE in systemd.exec(5): since systemd 254 a service
// knows whether it has a descriptor store. With an older systemd, the node uses a keeper process,
// and systemd must not kill this process when it stops the unit (KillMode=process).
func Environment() *Manager {
	defer func() {
		for _, name := range variables {
			_ = os.Unsetenv(name) // child processes must not get these variables
		}
	}()
	m := &Manager{socket: os.Getenv("NOTIFY_SOCKET"), kept: map[string]int{}}
	m.stores, _ = strconv.Atoi(os.Getenv("FDSTORE"))
	if ours("WATCHDOG_PID") {
		usec, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
		m.watchdog = time.Duration(usec) * time.Microsecond
	}
	if n, err := strconv.Atoi(os.Getenv("LISTEN_FDS")); err == nil && ours("LISTEN_PID") {
		names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
		for i := range n {
			unix.CloseOnExec(firstPassed + i)
			if i < len(names) && strings.HasPrefix(names[i], managedFile) {
				m.kept[names[i]] = firstPassed + i
			}
		}
	}
	if m.socket == "" {
		return nil
	}
	return m
}

// ours reports whether a variable names this process, or is not set.
func ours(variable string) bool {
	pid := os.Getenv(variable)
	return pid == "" || pid == strconv.Itoa(os.Getpid())
}

// Stores reports whether the manager can hold the descriptors that a node needs.
func (m *Manager) Stores() bool { return m != nil && m.stores > maxFiles }

// Watchdog returns the longest allowed time between two reports of "WATCHDOG=1"; 0: no reports are
// expected.
func (m *Manager) Watchdog() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog
}

// Notify reports lines of sd_notify(3), for example "READY=1".
func (m *Manager) Notify(lines string) error {
	if m == nil {
		return nil
	}
	return m.send(lines)
}

func (m *Manager) send(lines string, fds ...int) error {
	// Package net cannot send descriptors through a connected datagram socket.
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer unix.Close(socket)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	wait := unix.NsecToTimeval(timeout.Nanoseconds())
	err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)
	if err == nil {
		err = unix.Sendmsg(socket, []byte(lines), rights, &unix.SockaddrUnix{Name: m.socket},
			unix.MSG_NOSIGNAL) // a name that begins with @ is an abstract socket
	}
	if err != nil {
		return fmt.Errorf("notify the service manager at %s: %w", m.socket, err)
	}
	return nil
}

// Keep implements Keeper, for the next process. After a Take, files must begin with the files that
// Take returned, because the manager still holds these under their names.
func (m *Manager) Keep(ctx context.Context, files []*os.File, note []byte) error {
	if err := checkSize(files, note); err != nil {
		return err
	}
	if err := m.write(note); err != nil {
		return fmt.Errorf("write the note for the next daemon: %w", err)
	}
	files = append(files[:len(files):len(files)], m.note)
	for i, file := range files {
		name := managedFile + strconv.Itoa(i)
		if i == len(files)-1 { // the note comes last, because Take ignores files without a note
			name = managedNote
		}
		fds, err := numbers([]*os.File{file})
		if err == nil {
			// Without FDPOLL=0 systemd would poll the connection, and be woken for each request.
			err = m.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, fds...)
		}
		if err != nil {
			return fmt.Errorf("send descriptors to the service manager: %w", err)
		}
	}
	if err := m.barrier(ctx); err != nil {
		return err
	}
	m.held = bytes.Clone(note)
	return nil
}

// Holds implements Keeper. A manager cannot be asked what it holds, so Holds compares note with the
// note of the last successful Keep.
func (m *Manager) Holds(_ context.Context, note []byte) error {
	if m.held == nil || !bytes.Equal(m.held, note) {
		return fmt.Errorf("the service manager does not hold the devices: %w", fs.ErrNotExist)
	}
	return nil
}

// String implements Keeper.
func (*Manager) String() string { return "the service manager" }

// write writes the note in one system call, so that a reader gets the old note or the new one.
func (m *Manager) write(note []byte) error {
	if m.note == nil {
		fd, err := unix.MemfdCreate("lighter-note", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		m.note = os.NewFile(uintptr(fd), "note")
	}
	page := make([]byte, maxNote)
	copy(page, note)
	_, err := m.note.WriteAt(page, 0)
	return err
}

// barrier waits until the manager has read all messages. It sends the manager one end of a pipe.
// The manager closes this end after it has read the previous messages.
func (m *Manager) barrier(ctx context.Context) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	fds, err := numbers([]*os.File{w})
	if err == nil {
		err = m.send("BARRIER=1", fds...)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	end := time.Now().Add(timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	if err := r.SetReadDeadline(end); err != nil {
		return err
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the service manager does not confirm that it holds the descriptors")
	}
	return nil
}

// Take implements Keeper, with the descriptors that the manager has passed to this process. It is
// called once.
func (m *Manager) Take(ctx context.Context) ([]*os.File, []byte, error) {
	fd, ok := m.kept[managedNote]
	if !ok {
		err := fmt.Errorf("the service manager holds nothing: %w", fs.ErrNotExist)
		return nil, nil, errors.Join(err, m.dropWithoutNote(ctx))
	}
	var files []*os.File
	for i := 0; ; i++ {
		fd, ok := m.kept[managedFile+strconv.Itoa(i)]
		if !ok {
			break
		}
		files = append(files, os.NewFile(uintptr(fd), "kept"))
	}
	m.note = os.NewFile(uintptr(fd), "note")
	m.kept = nil
	page := make([]byte, maxNote)
	if _, err := m.note.ReadAt(page, 0); err != nil {
		return nil, nil, fmt.Errorf("read the note from the service manager: %w", err)
	}
	return files, bytes.TrimRight(page, "\x00"), nil
}

// dropWithoutNote drops files that the manager holds without a note. They are from a daemon that
// was killed before it had sent everything, and would keep the connection open.
func (m *Manager) dropWithoutNote(ctx context.Context) error {
	if len(m.kept) == 0 {
		return nil
	}
	closeAll(slices.Collect(maps.Values(m.kept)))
	return m.Drop(ctx)
}

// Drop implements Keeper.
func (m *Manager) Drop(ctx context.Context) error {
	names := []string{managedNote}
	for i := range maxFiles {
		names = append(names, managedFile+strconv.Itoa(i))
	}
	for _, name := range names {
		if err := m.send("FDSTOREREMOVE=1\nFDNAME=" + name); err != nil {
			return err
		}
	}
	m.kept, m.held = nil, nil
	if m.note != nil {
		_ = m.note.Close() // nothing can be lost: the file is only memory
		m.note = nil
	}
	return m.barrier(ctx)
}
