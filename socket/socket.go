// Package socket opens listeners whose address is HOST:PORT or unix:/PATH, and Unix sockets that
// only their owner can connect to, from the first moment on. A socket that a killed process left
// behind is replaced. A path that the kernel would refuse is refused before anything is started,
// with the reason.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"lighter/proc"
)

// MaxPath is the longest path of a Unix socket that the kernel accepts, in bytes. For a longer path
// it returns EINVAL, which does not give the reason.
const MaxPath = 107

// unixPrefix is the prefix of an address that is a Unix socket.
const unixPrefix = "unix:"

// CheckPath returns why no socket can be at path, which is the value of a setting.
func CheckPath(setting, path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s %q is not an absolute path", setting, path)
	case len(path) > MaxPath:
		return fmt.Errorf("%s %s: the socket's path has %d bytes, and the kernel allows %d: choose a shorter one",
			setting, path, len(path), MaxPath)
	}
	return nil
}

// CheckAddress returns why nothing can listen at address, which is the value of a setting.
func CheckAddress(setting, address string) error {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		return CheckPath(setting, path)
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s %q: want HOST:PORT or unix:/PATH", setting, address)
	}
	return nil
}

// ListenAddress listens at HOST:PORT, or at unix:/PATH as Listen does.
func ListenAddress(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, unixPrefix); ok {
		return Listen(ctx, path)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// Listen makes a Unix socket at path that only its owner can connect to. It replaces a socket
// that has no listener any more. Anything else at path stays and is an error.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		// Linux gives the file the mode that the socket has when it is bound, so
		// there is no moment in which others could connect.
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

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket: remove it, or listen elsewhere", path)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		defer conn.Close()
		if listenerIsDead(conn.(*net.UnixConn)) {
			return os.Remove(path)
		}
		return fmt.Errorf("another process listens on %s already: stop it, or choose another address", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("find out which process listens on %s: %w", path, err)
	}
	return os.Remove(path)
}

// listenerIsDead reports whether the listening process was killed, though the kernel has not
// closed its sockets yet.
func listenerIsDead(conn *net.UnixConn) bool {
	peer, err := proc.Peer(conn)
	return err == nil && proc.IsDead(int(peer.Pid))
}
