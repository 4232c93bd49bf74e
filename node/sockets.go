package node

import (
	"fmt"
	"path/filepath"

	"lighter/node/keeper"
	"lighter/socket"
)

// ControlSocket returns where the daemon with that root answers.
func ControlSocket(root string) string { return filepath.Join(root, "control.sock") }

// checkRootPath says why there cannot be a node with that root: the path of one of
// its sockets is too long.
func checkRootPath(root string) error {
	for _, path := range []string{ControlSocket(root), keeper.Socket(root)} {
		if len(path) > socket.MaxPath {
			return fmt.Errorf("root %s: its socket %s has %d bytes, and the kernel allows %d: choose a shorter --root", root, path, len(path), socket.MaxPath)
		}
	}
	return nil
}
