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

// keeper is what one holds. The descriptors are none of os's: Go's poller would
// watch them, and the keeper would wake with each request that it is not to answer.
type keeper struct {
	fds  []int // the first one is the connection; empty: nothing is held
	note []byte
}

// Run is a keeper's life: it answers on the socket that Keep has given the
// process, until what it holds is of no use any more.
func Run() error {
	// When memory is short it is the last to be killed, and has next to none. Where
	// that is not allowed it is as the daemon is.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
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
	k := &keeper{}
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
		if len(k.fds) == 0 && time.Since(start) > idle || len(k.fds) > 0 && ended(k.fds[0]) {
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
	op, note, fds, err := receiveAny(conn)
	switch {
	case err != nil:
	case op == opKeep && len(fds) > 0:
		k.drop()
		k.fds, k.note = fds, note
		_ = send(conn, opKeep, nil)
		return false
	case op == opTake:
		_ = send(conn, opTake, k.note, k.fds...)
	case op == opDrop:
		dropped = true
	}
	closeAll(fds)
	return dropped
}

func (k *keeper) drop() {
	closeAll(k.fds)
	k.fds, k.note = nil, nil
}

// ended tells whether the kernel has ended a FUSE connection: then to poll it is
// an error.
func ended(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}
