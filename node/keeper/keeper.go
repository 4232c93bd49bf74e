// Package keeper holds the descriptors of the connection to the kernel while the daemon is
// replaced, so that the next daemon can take them over. If the service manager has a descriptor
// store, it holds copies of the descriptors (manager.go). Otherwise a keeper process holds them
// (run.go). A keeper process has no other task, and so no reason to end. Requests to a dead daemon
// wait in the kernel for the next daemon.
//
// A keeper does not answer requests of the kernel. It holds a few descriptors and a short note, and
// interprets neither. New descriptors and a new note replace the previous ones.
//
// A keeper process ends by itself when the kernel has ended the connection, because everything was
// unmounted. If the process is killed while no daemon runs, the connection ends, and reads fail.
// Where the daemon's children end with the daemon, a keeper is a service of its own (Stay).
//
// A keeper process listens on a Unix socket (SOCK_SEQPACKET) that only root can use. A client sends
// one message on each connection. The messages and answers are:
//
//	K note + descriptors  →  K                       hold these, and drop what was held
//	T                     →  T note + descriptors    copies; no descriptor: nothing is held
//	D                     →  end of the process      drop what is held
package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lighter/durable"
)

const (
	opKeep = 'K'
	opTake = 'T'
	opDrop = 'D'

	maxNote  = 4096            // bytes of a note
	maxFiles = 4               // descriptors that are held with a note
	timeout  = 5 * time.Second // of each wait for the other end; a keeper answers at once
)

// Socket returns the path of the socket of root's keeper.
func Socket(root string) string { return filepath.Join(root, "keeper.sock") }

// Keeper holds descriptors from one daemon to the next.
type Keeper interface {
	// Keep makes the keeper hold copies of files, and note, instead of what it held. files[0] is
	// the connection: when it ends, the keeper drops everything.
	Keep(ctx context.Context, files []*os.File, note []byte) error
	// Take returns copies of the descriptors that the keeper holds, and the note. The keeper goes
	// on holding its descriptors. If it holds nothing, the error wraps fs.ErrNotExist.
	Take(ctx context.Context) (files []*os.File, note []byte, err error)
	// Holds returns nil if the keeper holds the descriptors that it was given with this note. If
	// the keeper certainly does not hold them, the error wraps fs.ErrNotExist.
	Holds(ctx context.Context, note []byte) error
	// Drop makes the keeper close what it holds.
	Drop(ctx context.Context) error
	// String returns the keeper's name, for status and log.
	String() string
}

var _, _ Keeper = Process{}, (*Manager)(nil)

// Process is a keeper process.
type Process struct {
	Root string // the node's root directory
	// Command is the path and the arguments of a program that calls Run. The program's descriptor 3
	// is the listening socket. Without a Command, no keeper process can be started.
	Command []string
}

// Keep implements Keeper. It starts a keeper process if none runs.
func (p Process) Keep(ctx context.Context, files []*os.File, note []byte) error {
	if err := checkSize(files, note); err != nil {
		return err
	}
	err := give(ctx, p.Root, files, note)
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	if err := start(ctx, p.Root, p.Command); err != nil {
		return fmt.Errorf("start a keeper: %w", err)
	}
	return give(ctx, p.Root, files, note)
}

// checkSize fails if a keeper cannot hold these files and a note of this length.
func checkSize(files []*os.File, note []byte) error {
	if len(note) > maxNote || len(files) == 0 || len(files) > maxFiles {
		return fmt.Errorf("keep %d descriptors and a note of %d bytes: a keeper holds 1 to %d, and at most %d bytes",
			len(files), len(note), maxFiles, maxNote)
	}
	return nil
}

// give makes the keeper process of root hold files and note.
func give(ctx context.Context, root string, files []*os.File, note []byte) error {
	conn, err := dial(ctx, root)
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	defer conn.Close()
	fds, err := numbers(files)
	if err == nil {
		err = send(conn, opKeep, note, fds...)
	}
	runtime.KeepAlive(files)
	if err != nil {
		return fmt.Errorf("send descriptors to the keeper: %w", err)
	}
	if _, _, err = receive(conn, opKeep); err != nil {
		return fmt.Errorf("wait for the keeper's confirmation: %w", err)
	}
	return nil
}

// numbers returns the descriptors of files and does not change them. os.File.Fd would make them
// blocking, in every process that has them open.
func numbers(files []*os.File) (fds []int, err error) {
	for _, file := range files {
		raw, err := file.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return nil, err
		}
	}
	return fds, nil
}

// Take implements Keeper.
func (p Process) Take(ctx context.Context) ([]*os.File, []byte, error) {
	note, fds, err := p.ask(ctx)
	if err != nil {
		return nil, nil, err
	}
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "kept"))
	}
	return files, note, nil
}

// Holds implements Keeper.
func (p Process) Holds(ctx context.Context, note []byte) error {
	got, fds, err := p.ask(ctx)
	closeAll(fds)
	if err == nil && !bytes.Equal(got, note) {
		err = fmt.Errorf("the keeper holds other descriptors: %w", fs.ErrNotExist)
	}
	return err
}

// String implements Keeper.
func (Process) String() string { return "a process of its own" }

// ask returns the note, and copies of the descriptors, that the keeper process holds.
func (p Process) ask(ctx context.Context) (note []byte, fds []int, err error) {
	note, fds, err = p.askOnce(ctx)
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) { // the process has probably just ended
		note, fds, err = p.askOnce(ctx)
	}
	return note, fds, err
}

func (p Process) askOnce(ctx context.Context) (note []byte, fds []int, err error) {
	conn, err := dial(ctx, p.Root)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil, fmt.Errorf("the keeper has ended: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reach the keeper: %w", err)
	}
	defer conn.Close()
	if err := send(conn, opTake, nil); err != nil {
		return nil, nil, fmt.Errorf("ask the keeper: %w", err)
	}
	note, fds, err = receive(conn, opTake)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the keeper: %w", err)
	}
	if len(fds) == 0 {
		return nil, nil, fmt.Errorf("the keeper holds nothing: %w", fs.ErrNotExist)
	}
	return note, fds, nil
}

// Drop implements Keeper. When it returns, the process has ended, or holds nothing (Stay).
func (p Process) Drop(ctx context.Context) error {
	conn, err := dial(ctx, p.Root)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	defer conn.Close()
	err = send(conn, opDrop, nil)
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // until the process has ended
	}
	if err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("make the keeper drop its descriptors: %w", err)
	}
	return nil
}

func dial(ctx context.Context, root string) (*net.UnixConn, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "unixpacket", Socket(root))
	if err != nil {
		return nil, err
	}
	c := conn.(*net.UnixConn)
	return c, c.SetDeadline(time.Now().Add(timeout))
}

// errListens says that a keeper listens on the socket of a root.
var errListens = errors.New("another keeper listens there")

// makeSocket makes the socket of root's keeper, in place of the one that an ended keeper has left.
// While it does, root is locked against daemons that start, and against other keepers: the
// descriptors of a keeper whose socket is replaced would be lost.
func makeSocket(ctx context.Context, root string) (*net.UnixListener, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	unlock, err := durable.LockDir(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", root, err)
	}
	defer unlock()
	conn, err := dial(ctx, root)
	switch {
	case err == nil:
		return nil, errors.Join(errListens, conn.Close())
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED):
		return nil, err
	}
	if err := os.Remove(Socket(root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: Socket(root), Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(Socket(root), 0o600); err != nil { // in time, because only root can enter the directory
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// start starts a keeper process. When it returns, the process's socket exists, so clients need not
// wait for it. Only the daemon that has locked root calls start. If a keeper has begun to listen
// meanwhile (Stay), none is started.
func start(ctx context.Context, root string, command []string) error {
	if len(command) == 0 {
		return errors.New("no command is known that runs a keeper")
	}
	listener, err := makeSocket(ctx, root)
	if errors.Is(err, errListens) {
		return nil
	}
	if err != nil {
		return err
	}
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Dir = "/"
	// A session of its own: signals to the daemon's terminal or process group do not reach the
	// keeper.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // otherwise the process would become a zombie when it ends
	return nil
}

func send(conn *net.UnixConn, op byte, note []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err := conn.WriteMsgUnix(append([]byte{op}, note...), rights, nil)
	return err
}

// receive returns the note and the descriptors of one message. It fails if the message's operation
// is not op.
func receive(conn *net.UnixConn, op byte) (note []byte, fds []int, err error) {
	got, note, fds, err := receiveAny(conn)
	if err == nil && got != op {
		closeAll(fds)
		return nil, nil, fmt.Errorf("got message %q, want %q", got, op)
	}
	return note, fds, err
}

func receiveAny(conn *net.UnixConn) (op byte, note []byte, fds []int, err error) {
	b, oob := make([]byte, 1+maxNote), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return 0, nil, nil, err
	}
	fds, err = descriptors(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("message truncated: out of descriptors, or not a message of a keeper")
	}
	if err != nil {
		closeAll(fds)
		return 0, nil, nil, err
	}
	return b[0], b[1:n], fds, nil
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

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
