package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"lighter/node/control"
	"lighter/node/mount"
)

// statusTimeout bounds the wait for the answers of the running node.
const statusTimeout = 10 * time.Second

// InUse returns an error that names what uses the lazy images of the node with that root:
// containers, and mounts of `lighter mount`. Without a running node it cannot know that, and
// returns an error if the node's mounts are there.
func InUse(ctx context.Context, root string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	client := control.New(root)
	status, err := client.Status(ctx)
	if errors.Is(err, control.ErrNoDaemon) {
		connection, err := mount.Connection(root)
		if errors.Is(err, fs.ErrNotExist) || err == nil && connection == "" {
			return nil
		}
		if err != nil {
			return err
		}
		return errors.New("no node runs, and its mounts are still there: start the node to see what uses them, " +
			"or give --force")
	}
	if err != nil {
		return err
	}
	var users []string
	for _, image := range status.Images {
		if !image.Lazy {
			continue
		}
		details, err := client.Images(ctx, image.Chain)
		if err != nil {
			return err
		}
		for _, d := range details {
			for _, snapshot := range d.Snapshots {
				users = append(users, containerOf(snapshot)+" of "+cmp.Or(image.Image, "chain "+image.Chain))
			}
		}
	}
	for _, b := range status.Binds {
		users = append(users, fmt.Sprintf("lighter mount %s %s", b.Name, b.Dir))
	}
	if len(users) == 0 {
		return nil
	}
	return fmt.Errorf("lazy images are in use: %s: remove these first, or give --force, after which their reads fail",
		strings.Join(users, ", "))
}

// containerOf names the container of a snapshot, as containerd names snapshots:
// NAMESPACE/NUMBER/CONTAINER.
func containerOf(snapshot string) string {
	parts := strings.SplitN(snapshot, "/", 3)
	if len(parts) < 3 {
		return "snapshot " + snapshot
	}
	return fmt.Sprintf("container %s (namespace %s)", parts[2], parts[0])
}
