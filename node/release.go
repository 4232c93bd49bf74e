package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"lighter/durable"
	"lighter/node/keeper"
	"lighter/node/mount"
	"lighter/node/takeover"
)

// Release gives up the devices of a node that will not come back: what is kept of
// them is dropped, reads that wait for the node fail, as will all others that are
// not in memory, and its mounts are taken away, those for people too. What is on the disk stays. It
// refuses while a node runs with that root.
func Release(ctx context.Context, root string) error {
	if os.Geteuid() != 0 {
		return errors.New("the devices are root's alone: run this as root (try sudo)")
	}
	root = realRoot(root)
	if _, err := os.Stat(takeover.LockFile(root)); err != nil {
		return fmt.Errorf("there is no node's root at %s: say --root: %w", root, err)
	}
	var leftovers durable.Leftovers // are logged
	lock, _, err := takeover.Lock(root, &leftovers)
	if errors.Is(err, takeover.ErrInUse) {
		return fmt.Errorf("a node runs with root %s: stop it first", root)
	}
	if err != nil {
		return fmt.Errorf("release the devices: %w", err)
	}
	defer lock.Close()
	err = errors.Join(keeper.Process{Root: root}.Drop(ctx), mount.Release(root))
	binds := openBinds(root, &leftovers)
	for _, b := range binds.list() { // the next node forgets those that are not mounted
		_, failed := mount.Unbind(root, b.Dir)
		err = errors.Join(err, failed)
	}
	if binds.unknown {
		err = errors.Join(err, fmt.Errorf("the list of images mounted by lighter mount in %s cannot be read: unmount them by hand", root))
	}
	return err
}
