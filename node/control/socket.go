// Package control lets root on the same machine control a running node: see its state, manage its
// cache, mount images without containerd, record starts, and stop it. It has both ends of the
// control socket: the daemon's Server and the commands' Client.
//
// The protocol is HTTP with JSON. It is not a public interface: both ends must have the same
// version.
package control

import (
	"fmt"
	"path/filepath"

	"lighter/node/keeper"
	"lighter/socket"
)

// Socket returns the path of the control socket of the daemon with that root.
func Socket(root string) string { return filepath.Join(root, "control.sock") }

// CheckRoot returns an error if no node can have that root, because the path of one of its sockets
// would be too long.
func CheckRoot(root string) error {
	for _, path := range []string{Socket(root), keeper.Socket(root)} {
		if len(path) > socket.MaxPath {
			return fmt.Errorf("root %s: its socket %s has %d bytes, and the kernel allows %d: choose a shorter --root",
				root, path, len(path), socket.MaxPath)
		}
	}
	return nil
}
