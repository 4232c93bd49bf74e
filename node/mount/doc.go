// Package mount promises that a tree which is on this machine can be mounted
// without the network: it brings indexes here, verified before they get their
// names, and mounts each with EROFS over its device. Before a kernel sees a metadata
// image it is hashed, and looked through for what could confuse it: when it comes,
// so that nothing is claimed that cannot be mounted, and whenever it is mounted, for
// the disk may have damaged it since. What is damaged is fetched once more.
// What it damages of one under its mount is noticed by Scrub, and cannot be mended
// there. Locations that did not come, or are damaged, are fetched in the background as
// soon as the tree is served, and given to the device that is there; so are newer ones
// when a tree is wanted again.
//
// A tree all of whose chunks are here can have a local device: a file that is read
// instead of the device that the daemon serves. It is made of verified chunks and
// verified once more from the disk; from then on it is the kernel's to read, and like a
// metadata image it is verified by Scrub alone.
//
// The kernel gets at a tree's two files as they are, or behind loop devices where
// it takes no files (Mode). A kernel that can do neither is found out before
// anything is claimed (Probe), and asked again once in a while.
//
// It refuses to know chains and snapshots: who needs a tree, and when it may
// go, is said by the caller. It never deletes a tree because it could not be
// mounted, and never unmounts what it has not mounted.
//
// On disk, below the node's root:
//
//	trees/TREE/map             header, page table and pages of the index
//	trees/TREE/metadata        the metadata image, which the kernel reads
//	trees/TREE/locations       where its chunks lie, a hint; may be missing
//	trees/TREE/local/device    the local device: what the device holds, at the same offsets
//	trees/TREE/local/metadata  another name of the metadata image, by which a mount that reads it is known
//	trees/TREE/local.new/      a local device that is made; worth nothing after a crash
//	trees/TREE/local.rm/       one on its way out
//	trees/new-TREE/            an index on its way in; worth nothing after a crash
//	trees/rm-TREE/             an index on its way out
//	devices/                   the FUSE mount: one file a mounted tree
//	mounts/TREE/               where a tree is mounted
//	probe/                     an empty tree, while Probe tries to mount it
package mount
