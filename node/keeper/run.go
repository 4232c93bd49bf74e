package keeper

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// listenerFD is the descriptor that a keeper inherits: its socket, listening.
const listenerFD = 3

// idle is how long a keeper waits for the first descriptor.
const idle = 10 * time.Second

// keeper is what one holds. The descriptor is none of os's: Go's poller would
// watch it, and the keeper would wake with each request that it is not to answer.
type keeper struct {
	fd   int
	note []byte
}

// Run is a keeper's life: it answers on the socket that Keep has given the
// process, until what it holds is of no use any more.
func Run() error {
	file := os.NewFile(listenerFD, "socket")
	inherited, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("a keeper is started by `lighter node`: %w", err)
	}
	file.Close()
	listener, ok := inherited.(*net.UnixListener)
	if !ok {
		return errors.New("a keeper is started by `lighter node`, with a Unix socket")
	}
	defer listener.Close()
	return serve(listener)
}

// serve answers one after the other. Between them it looks whether the kernel
// still wants the connection.
func serve(listener *net.UnixListener) error {
	k := &keeper{fd: none}
	defer k.drop()
	for start := time.Now(); ; {
		if err := listener.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			if dropped := k.answer(conn); dropped {
				return nil // whoever wanted it waits until the process has ended
			}
			conn.Close()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if k.fd == none && time.Since(start) > idle || k.fd != none && ended(k.fd) {
			return nil
		}
	}
}

// answer answers one message; what goes wrong with it is for whoever sent it to
// see.
func (k *keeper) answer(conn *net.UnixConn) (dropped bool) {
	if conn.SetDeadline(time.Now().Add(patience)) != nil {
		return false
	}
	op, note, fd, err := receiveAny(conn)
	switch {
	case err != nil:
	case op == opKeep && fd != none:
		k.drop()
		k.fd, k.note = fd, note
		_ = send(conn, opKeep, nil, none)
		return false
	case op == opTake:
		_ = send(conn, opTake, k.note, k.fd)
	case op == opDrop:
		dropped = true
	}
	closeFD(fd)
	return dropped
}

func (k *keeper) drop() {
	closeFD(k.fd)
	k.fd, k.note = none, nil
}

// ended tells whether the kernel has ended a FUSE connection: then to poll it is
// an error.
func ended(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}
