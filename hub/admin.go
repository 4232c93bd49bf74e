package hub

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// listenAdmin listens where alone what is kept is changed; nil: that is done where
// all else is.
func (c *Config) listenAdmin() (net.Listener, error) {
	path, socket := strings.CutPrefix(c.AdminListen, unixPrefix)
	switch {
	case c.AdminListen == "":
		return nil, nil
	case !socket:
		listener, err := net.Listen("tcp", c.AdminListen)
		if err != nil {
			return nil, fmt.Errorf("listen for those who change something: %w", err)
		}
		return listener, nil
	}
	// That of a hub that was killed: this one has the lock of the directory.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if conn, err := net.Dial("unix", path); err == nil {
			_ = conn.Close() // it was of no use
			return nil, fmt.Errorf("listen for those who change something: somebody answers at %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen for those who change something: %w", err)
		}
	}
	mask := syscall.Umask(0o177) // nobody else gets in before a chmod
	listener, err := net.Listen("unix", path)
	syscall.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("listen for those who change something: %w", err)
	}
	return listener, nil
}
