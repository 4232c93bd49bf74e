package node

import (
	"fmt"
	"path/filepath"

	"lighter/node/keeper"
)

// maxSocketPath is the longest path of a Unix socket that the kernel takes, in
// bytes. It says EINVAL to a longer one, and not why.
const maxSocketPath = 107

// ControlSocket returns where the daemon with that root answers.
func ControlSocket(root string) string { return filepath.Join(root, "control.sock") }

// checkRootPath says why there cannot be a node with that root: the path of one of
// its sockets is too long.
func checkRootPath(root string) error {
	for _, path := range []string{ControlSocket(root), keeper.Socket(root)} {
		if len(path) > maxSocketPath {
			return fmt.Errorf("root %s: its socket %s has %d bytes, and the kernel allows %d: choose a shorter --root", root, path, len(path), maxSocketPath)
		}
	}
	return nil
}

// checkSocketPath says why there cannot be a socket at path, which setting says.
func checkSocketPath(setting, path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s %q is not an absolute path", setting, path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("%s %s: the socket's path has %d bytes, and the kernel allows %d: choose a shorter one", setting, path, len(path), maxSocketPath)
	}
	return nil
}
