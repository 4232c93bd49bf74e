package containerd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// mapOptions returns the mount options for the ID mappings of a user namespace, if Config.RemapIDs
// is set.
func (s *Snapshotter) mapOptions(labels map[string]string) (options []string) {
	if !s.remapIDs {
		return nil
	}
	if v, ok := labels[snapshots.LabelSnapshotUIDMapping]; ok {
		options = append(options, "uidmap="+v)
	}
	if v, ok := labels[snapshots.LabelSnapshotGIDMapping]; ok {
		options = append(options, "gidmap="+v)
	}
	return options
}

func isMapped(labels map[string]string) bool {
	_, uid := labels[snapshots.LabelSnapshotUIDMapping]
	_, gid := labels[snapshots.LabelSnapshotGIDMapping]
	return uid || gid
}

// mappedRoot returns the user and group on the host to which the container's root is mapped.
func mappedRoot(labels map[string]string) (uid, gid int, err error) {
	if uid, err = rootOf(labels[snapshots.LabelSnapshotUIDMapping]); err != nil {
		return 0, 0, err
	}
	gid, err = rootOf(labels[snapshots.LabelSnapshotGIDMapping])
	return uid, gid, err
}

// rootOf returns the ID on the host to which the container's ID 0 is mapped. A mapping is a
// comma-separated list of CONTAINER:HOST:LENGTH. An empty mapping maps each ID to itself.
func rootOf(mapping string) (int, error) {
	if mapping == "" {
		return 0, nil
	}
	root := -1
	for _, part := range strings.Split(mapping, ",") {
		var field [3]uint64
		digits := strings.Split(part, ":")
		if len(digits) != len(field) {
			return 0, fmt.Errorf("ID mapping %q is not CONTAINER:HOST:LENGTH: %w", part, errdefs.ErrInvalidArgument)
		}
		for i, d := range digits {
			// The largest 32-bit ID means "no ID" to the kernel.
			n, err := strconv.ParseUint(d, 10, 32)
			if err != nil || n == 1<<32-1 {
				return 0, fmt.Errorf("ID mapping %q: %q is not an ID: %w", part, d, errdefs.ErrInvalidArgument)
			}
			field[i] = n
		}
		if root < 0 && field[0] == 0 && field[2] > 0 {
			root = int(field[1])
		}
	}
	if root < 0 {
		return 0, fmt.Errorf("ID mapping %q does not map root: %w", mapping, errdefs.ErrInvalidArgument)
	}
	return root, nil
}
