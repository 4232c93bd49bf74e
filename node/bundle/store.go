package bundle

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"lighter/node/binds"
	"lighter/node/imagestore"
	"lighter/node/mount"
)

// bindFromStore mounts an image of an image store, and returns its config. The store's node maps
// the owners of the image's files into the user namespace of this process.
func (p places) bindFromStore(o Options) ([]byte, error) {
	if o.Platform != "" {
		return nil, errors.New("--platform needs root: the image store has images for this machine alone")
	}
	found, err := imagestore.Find(o.Store, binds.Names(o.Image))
	switch {
	case errors.Is(err, imagestore.ErrNoImage):
		return nil, fmt.Errorf("%w: add it to the hub and wait a minute, or pull all of it with --pull always", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: without root, a container needs a node with image_store (or run this as root; "+
			"another directory: --image-store)", err)
	case err != nil:
		return nil, err
	}
	err = unix.Mount(found.Tree, p.image(), "", unix.MS_BIND, "")
	switch {
	case errors.Is(err, unix.ENOENT):
		err = fmt.Errorf("%w: the node of image store %s does not run (lighter doctor)", err, o.Store)
	case errors.Is(err, unix.EIO):
		err = fmt.Errorf("%w: the log of the node has the cause", err)
	}
	if err != nil {
		return nil, fmt.Errorf("mount image %s: %w", o.Image, err)
	}
	return found.Config, nil
}

// unbind undoes bindFromStore. The mount of another process has ended with its namespace.
func (p places) unbind() error {
	points, err := mount.Points(p.image())
	if err != nil || len(points) == 0 {
		return err
	}
	if err := unix.Unmount(p.image(), unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", p.image(), err)
	}
	return nil
}
