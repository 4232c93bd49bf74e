package blobs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"lighter/node/mount"
)

// Release removes all links of a node that does not run, and containerd's entries for them.
// containerd must run, because it alone can change its entries. Without links, Release does
// nothing.
func Release(ctx context.Context, root string) error {
	s, err := readStored(root)
	if err != nil || s.Contents == "" {
		return errors.Join(err, mount.DetachBlobs(root, mountPoint(root)))
	}
	links, err := s.Contents.links()
	if err == nil && len(links) > 0 {
		err = releaseLinks(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("remove the links of %d layers that containerd has not downloaded: %w (start containerd and "+
			"release the node again, or remove the images)", len(links), err)
	}
	return errors.Join(mount.DetachBlobs(root, mountPoint(root)), os.RemoveAll(s.Contents.scratch()),
		os.Remove(storedFile(root)))
}

func releaseLinks(ctx context.Context, s stored) error {
	conn, err := dial(s.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return newStore(conn).forget(ctx, s.Contents, nil)
}
