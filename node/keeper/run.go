package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// listenerFD is the descriptor of the listening socket that a keeper process inherits.
const listenerFD = 3

// firstTimeout is how long a keeper process waits for its first descriptors.
const firstTimeout = 10 * time.Second

// keeper has what a keeper process holds. The descriptors are not os.Files, because Go's poller
// would watch os.Files, and wake the process for each request of the kernel.
type keeper struct {
	fds  []int // fds[0] is the connection; empty: nothing is held
	note []byte
}

// Run runs a keeper process. It answers on the socket that the process has inherited. It returns
// when the connection that it holds has ended, when a client drops it, or if no descriptors have
// arrived within firstTimeout.
func Run() error {
	protect()
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
	return serve(listener, false)
}

// Stay runs the keeper of root as a service of its own. It listens on root's socket itself, goes on
// when it holds nothing, and returns only if it cannot listen, or another keeper does.
func Stay(root string) error {
	protect()
	listener, err := makeSocket(context.Background(), root)
	if err != nil {
		return fmt.Errorf("listen for a node at %s: %w", root, err)
	}
	defer listener.Close()
	return serve(listener, true)
}

// protect keeps the kernel from killing the keeper when memory is short: the keeper uses next to no
// memory. If this process may not set its score, it has the daemon's score.
func protect() { _ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) }

// serve answers one message after the other. After each message, and each second, it checks whether
// the kernel has ended the connection. If stays is false, it returns when nothing is held.
func serve(listener *net.UnixListener, stays bool) error {
	k := &keeper{}
	defer k.drop()
	for start := time.Now(); ; {
		if err := listener.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			dropped := k.answer(conn)
			if dropped && !stays {
				return nil // conn stays open: its end shows the client that the process has ended
			}
			if dropped {
				k.drop()
			}
			conn.Close()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		gone := len(k.fds) > 0 && ended(k.fds[0])
		switch {
		case gone && stays:
			k.drop()
		case gone, !stays && len(k.fds) == 0 && time.Since(start) > firstTimeout:
			return nil
		}
	}
}

// answer answers one message. If it fails, only the sender of the message gets an error.
func (k *keeper) answer(conn *net.UnixConn) (dropped bool) {
	if conn.SetDeadline(time.Now().Add(timeout)) != nil {
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

// ended reports whether the kernel has ended a FUSE connection. poll(2) then returns POLLERR for
// it.
func ended(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}
