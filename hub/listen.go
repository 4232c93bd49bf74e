package hub

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// listenAdmin listens at admin_listen. It returns nil if that is not configured: changes are then made
// at the public address.
func (c *Config) listenAdmin() (net.Listener, error) {
	path, isSocket := strings.CutPrefix(c.AdminListen, unixPrefix)
	if c.AdminListen == "" {
		return nil, nil
	}
	var listener net.Listener
	var err error
	if isSocket {
		listener, err = listenSocket(path)
	} else {
		listener, err = net.Listen("tcp", c.AdminListen)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for administrators: %w", err)
	}
	return listener, nil
}

// listenSocket listens on a Unix socket that only the hub's user can connect to. It replaces the socket
// of a killed hub.
func listenSocket(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if conn, err := net.Dial("unix", path); err == nil {
			_ = conn.Close() // it only showed that a process listens
			return nil, fmt.Errorf("another process listens on %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	mask := syscall.Umask(0o177) // the mode must be right from the beginning
	defer syscall.Umask(mask)
	return net.Listen("unix", path)
}
