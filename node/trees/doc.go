// Package trees is the store of trees on this machine: indexes and their locations on the disk, and
// the trees' devices. If Has reports a tree, it can be served without the network, unless the disk
// has damaged its index.
//
// An index is verified before it gets its name. When it is fetched, and whenever Serve serves the
// tree, its metadata image is hashed, and checked for contents that could confuse a kernel.
// (Recover does not read metadata images: the kernel has mounted some already, and Serve verifies
// the others before their next mount.) A damaged index is fetched again (WithRepair), also while
// its device is read. Only a metadata image that is mounted cannot be repaired; Scrub reports it.
// Missing or old locations are fetched in the background and given to the open devices.
//
// A tree whose chunks are all cached can have a local device: a file with the same bytes, which
// the kernel reads without the daemon. It is made of verified chunks and verified again from the
// disk before it gets its name. After that only Scrub verifies it.
//
// The package knows no kernel mounts, chains or snapshots. Package mount mounts what Serve returns.
// The caller decides which trees are needed. The store does not remove a tree because it cannot be
// served.
//
// On disk, below the node's root:
//
//	trees/TREE/map             header, page table and pages of the index
//	trees/TREE/metadata        the metadata image, which the kernel reads
//	trees/TREE/locations       the units of its chunks, a hint; may be missing
//	trees/TREE/locations.new   locations being written
//	trees/TREE/local/device    the local device: the device's bytes, at the same offsets
//	trees/TREE/local/metadata  another name of the metadata image, for mounts of the local device
//	trees/TREE/local.new/      a local device being made; removed after a crash
//	trees/TREE/local.rm/       a local device being removed; removed after a crash
//	trees/new-TREE-N/          an index being fetched; removed after a crash
//	trees/rm-TREE/             an index being removed; removed after a crash
//
// The package is large because a tree is fetched, opened, repaired, located, made local and removed
// while its device may be read. All of this changes the same few files, in the order of the tree's
// lock. Parts with a state of their own are types of their own: locks, locals, table, fetcher,
// locator.
package trees
