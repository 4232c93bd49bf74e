// Package socket makes the Unix sockets on which a node listens. Only the socket's owner can
// connect. A socket that a killed daemon left behind is replaced.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"lighter/proc"
)

// Listen listens on a Unix socket at path, with mode 0600. It replaces a socket without a live
// listener, and fails if path is anything else.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		// Linux creates the file with the mode that the socket has when it is bound: at no moment
		// can another user connect.
		var err error
		if cerr := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return listener, nil
}

// removeStale removes a socket without a live listener.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a socket at %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: the file exists and is not a socket: remove it, or use another path", path)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		defer conn.Close()
		if isListenerDead(conn) {
			return os.Remove(path)
		}
		return fmt.Errorf("listen on %s: another process listens there already: stop it, or use another path", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("find out whether a process listens on %s: %w", path, err)
	}
	return os.Remove(path)
}

// isListenerDead reports whether the listening process was killed, even if the kernel has not
// closed its sockets yet.
func isListenerDead(conn net.Conn) bool {
	peer, err := proc.Peer(conn.(*net.UnixConn))
	return err == nil && proc.IsDead(int(peer.Pid))
}
