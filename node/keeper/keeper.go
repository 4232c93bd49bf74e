// Package keeper promises that the kernel's descriptors outlive the daemon: a
// process of its own holds them, which does nothing else and so has no reason to
// end, and the next daemon takes them over. What waits in the kernel for the dead
// daemon waits for the next one.
//
// It refuses to serve, and to know what it keeps: a descriptor, and a few bytes
// that go with it. It keeps one at a time.
//
// A keeper ends by itself when what it keeps is of no use any more: when the
// kernel has ended the connection, because everything is unmounted. If it is
// killed while no daemon runs, the connection ends, and reads fail.
//
// It listens on a Unix socket (SOCK_SEQPACKET) that only root can reach, and
// answers one message a connection:
//
//	K note + descriptor  →  K                      keep this instead of what was kept
//	T                    →  T note + descriptor    give a copy; without a descriptor: nothing is kept
//	D                    →  the end                drop it
package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	opKeep = 'K'
	opTake = 'T'
	opDrop = 'D'

	// maxNote bounds a note, in bytes.
	maxNote = 4096
	// patience bounds each wait for the other side: a keeper answers at once.
	patience = 5 * time.Second
)

// Socket returns the path of the socket of root's keeper.
func Socket(root string) string { return filepath.Join(root, "keeper.sock") }

// Keep has root's keeper hold a copy of file, with note, instead of what it held.
// If none runs it starts one: program, with args and the listening socket as its
// descriptor 3, has to call Run.
func Keep(ctx context.Context, root string, file *os.File, note []byte, program string, args ...string) error {
	if len(note) > maxNote {
		return fmt.Errorf("keep a note of %d bytes: the most is %d", len(note), maxNote)
	}
	conn, err := dial(ctx, root)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		if err := start(root, program, args); err != nil {
			return fmt.Errorf("start a keeper: %w", err)
		}
		conn, err = dial(ctx, root)
	}
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	defer conn.Close()
	if err := sendFile(conn, opKeep, note, file); err != nil {
		return fmt.Errorf("give the keeper a descriptor: %w", err)
	}
	if _, _, err = receive(conn, opKeep); err != nil {
		return fmt.Errorf("the keeper does not confirm: %w", err)
	}
	return nil
}

// Take returns a copy of what root's keeper holds, and its note. The keeper goes
// on holding it. Without a keeper, or if it holds nothing, the error wraps
// fs.ErrNotExist.
func Take(ctx context.Context, root string) (*os.File, []byte, error) {
	conn, err := dial(ctx, root)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil, fmt.Errorf("the keeper has ended: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reach the keeper: %w", err)
	}
	defer conn.Close()
	if err := send(conn, opTake, nil, none); err != nil {
		return nil, nil, fmt.Errorf("ask the keeper: %w", err)
	}
	note, fd, err := receive(conn, opTake)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the keeper: %w", err)
	}
	if fd == none {
		return nil, nil, fmt.Errorf("the keeper holds nothing: %w", fs.ErrNotExist)
	}
	return os.NewFile(uintptr(fd), "kept"), note, nil
}

// Drop has root's keeper let go of what it holds, and end. That there is none is
// no error.
func Drop(ctx context.Context, root string) error {
	conn, err := dial(ctx, root)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	defer conn.Close()
	err = send(conn, opDrop, nil, none)
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // until it has ended
	}
	if err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("have the keeper let go: %w", err)
	}
	return nil
}

func dial(ctx context.Context, root string) (*net.UnixConn, error) {
	dialer := net.Dialer{Timeout: patience}
	conn, err := dialer.DialContext(ctx, "unixpacket", Socket(root))
	if err != nil {
		return nil, err
	}
	c := conn.(*net.UnixConn)
	return c, c.SetDeadline(time.Now().Add(patience))
}

// start starts a keeper. The socket is there when it returns, so that nobody has
// to wait for it, and so that of two who start one the second fails.
func start(root, program string, args []string) error {
	if err := os.Remove(Socket(root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // it would be a dead one's
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: Socket(root), Net: "unixpacket"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	if err := os.Chmod(Socket(root), 0o600); err != nil { // root's directory is root's alone
		return err
	}
	file, err := listener.File()
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Dir = "/"
	// A session of its own: what ends the daemon's terminal or process group does
	// not end the keeper.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // how it ended is nobody's business; without this it would stay a zombie
	return nil
}

// none is no descriptor.
const none = -1

func sendFile(conn *net.UnixConn, op byte, note []byte, file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = send(conn, op, note, int(fd)) }); failed != nil {
		return failed
	}
	return err
}

func send(conn *net.UnixConn, op byte, note []byte, fd int) error {
	var rights []byte
	if fd != none {
		rights = unix.UnixRights(fd)
	}
	_, _, err := conn.WriteMsgUnix(append([]byte{op}, note...), rights, nil)
	return err
}

// receive returns one message, which has to be op's, and the descriptor that came
// with it.
func receive(conn *net.UnixConn, op byte) (note []byte, fd int, err error) {
	got, note, fd, err := receiveAny(conn)
	if err == nil && got != op {
		closeFD(fd)
		return nil, none, fmt.Errorf("it says %q where %q was expected", got, op)
	}
	return note, fd, err
}

func receiveAny(conn *net.UnixConn) (op byte, note []byte, fd int, err error) {
	b, oob := make([]byte, 1+maxNote), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return 0, nil, none, err
	}
	fds, err := descriptors(oob[:oobn])
	if err == nil && (n == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1) {
		err = errors.New("a message that is none")
	}
	if err != nil {
		for _, fd := range fds {
			closeFD(fd)
		}
		return 0, nil, none, err
	}
	return b[0], b[1:n], append(fds, none)[0], nil
}

func descriptors(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		more, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, nil
}

func closeFD(fd int) {
	if fd != none {
		_ = unix.Close(fd)
	}
}
