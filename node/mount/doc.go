// Package mount mounts trees with EROFS: the metadata image of a tree, with its served device or
// its local device as the data.
//
// The kernel reads the two files directly, or behind loop devices if it cannot mount files (Mode).
// When a node starts, Probe finds out whether the kernel can mount trees at all. If it cannot,
// CheckMountable probes again from time to time.
//
// Type Mounts has the mounts of the running node. The functions without a receiver work on a node's
// root directory, whether a node runs there or not. Bind and Unbind show a tree in another
// directory. Release and Abandon clean up.
//
// The package never removes a tree because it cannot be mounted, and never unmounts what other
// programs have mounted. The caller decides which trees are needed.
//
// On disk, below the node's root:
//
//	devices/       mount point of the FUSE file system: one file for each served tree
//	mounts/TREE/   mount point of a tree
//	probe/         an empty tree, while Probe mounts it
package mount
