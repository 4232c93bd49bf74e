package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/node/binds"
	"lighter/node/control"
	"lighter/node/directory"
	"lighter/node/front/containerd/blobs"
	"lighter/node/keeper"
	"lighter/node/mount"
	"lighter/node/takeover"
)

// openRoot makes the root directory, and makes sure that no other daemon uses it. inherited is as
// in takeover.Lock.
func (n *Node) openRoot() (inherited bool, err error) {
	if os.Geteuid() != 0 {
		return false, errors.New("a node mounts file systems and must run as root (try: sudo lighter node ...)")
	}
	if err := n.checkProgram(); err != nil {
		return false, err
	}
	err = n.makeRoot()
	if err == nil {
		n.lock, inherited, err = takeover.Lock(n.config.Root, n.leftovers)
	}
	if errors.Is(err, unix.EROFS) {
		err = fmt.Errorf("the node's root %s is on a file system that is read-only, and a node keeps its lock, "+
			"its sockets and its state there: make it writable (the kernel's log says why it is not), "+
			"or choose another --root: %w", n.config.Root, err)
	}
	return inherited, err
}

// checkProgram fails if this program's file is on an image that a node serves. The daemon would
// wait for itself when it reads its own code, and could not replace the daemon that serves the
// image. If the list of mounts cannot be read, checkProgram only logs that: the next part of the
// node that needs the list reports what that means for containers.
func (n *Node) checkProgram() error {
	tree, err := mount.LazyMount("/proc/self/exe")
	if err != nil {
		n.log.Warn("cannot find out whether this program lies on a lazy image", "err", err)
		return nil
	}
	if tree != "" {
		return fmt.Errorf("this program lies on an image that a lighter node serves (%s), and would wait for "+
			"itself to read it: install it on the machine's own disk, or pull its image with another snapshotter", tree)
	}
	return nil
}

// makeRoot makes the node's root directory, resolves symbolic links in its path, and checks that
// only the user root can change it.
func (n *Node) makeRoot() error {
	root := n.config.Root
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("make the node's root: %w", err)
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return fmt.Errorf("resolve the path of the node's root: %w", err)
	}
	if err := control.CheckRoot(real); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(real, &stat); err != nil {
		return fmt.Errorf("look at the node's root %s: %w", root, err)
	}
	if stat.Uid != 0 || stat.Mode&0o022 != 0 {
		return fmt.Errorf("users other than root can write to %s: run `chown root %[1]s; chmod 700 %[1]s`, "+
			"or give the node another --root", root)
	}
	n.config.Root = real
	return nil
}

// RealRoot returns a root's path without symbolic links, as in the kernel's list of mounts.
func RealRoot(root string) string {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		return real
	}
	return root
}

// Release gives up the devices of a node that will not start again. The keeper closes the
// connection to the kernel. So reads that wait for the node fail, and later reads of data that is
// not in memory fail, too. Release removes all mounts, also those of lighter mount and the
// directory of images, and what package blobs has made in containerd's content store. Files on the
// disk stay. If a node runs with that root, Release fails.
func Release(ctx context.Context, root string, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may release devices: run this as root (try sudo)")
	}
	root = RealRoot(root)
	if _, err := os.Stat(takeover.LockFile(root)); err != nil {
		return fmt.Errorf("%s is not the root of a node: choose another --root: %w", root, err)
	}
	leftovers := &durable.Leftovers{Log: log}
	lock, _, err := takeover.Lock(root, leftovers)
	if errors.Is(err, takeover.ErrInUse) {
		return fmt.Errorf("a node runs with root %s: stop it first", root)
	}
	if err != nil {
		return fmt.Errorf("release the devices: %w", err)
	}
	defer lock.Close()
	return errors.Join(keeper.Process{Root: root}.Drop(ctx), directory.Release(root, directoryFile, leftovers),
		directory.Release(root, storeTreesFile, leftovers), mount.Release(root), binds.Release(root, leftovers),
		blobs.Release(ctx, root))
}
