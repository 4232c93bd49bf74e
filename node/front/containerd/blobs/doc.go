// Package blobs lets containerd find the layers of lazy images, which it has not downloaded:
// `docker push`, `docker save`, `ctr images export` and whatever else reads them. A layer is
// fetched from the registry of a hub when it is first opened. Until then it takes no space.
//
// containerd's content store is a directory, in which blobs/sha256/HEX is a blob. For a layer that
// containerd lacks, this package makes a symbolic link there, which points to a file of a small
// FUSE file system (ROOT/blobs). The file has the layer's size. Its name says all that is needed to
// fetch the layer (name.go). containerd follows the link. It also gets an entry in its database,
// which is made over its own API: in each of the configured namespaces, for each image there. So
// containerd's garbage collector decides about the link as about any blob, and removes it with the
// last image.
//
// When a program opens the file, the node fetches the layer into the content store, verifies its
// digest, and puts the layer's file in the link's place. The program waits meanwhile. Lookups and
// listings fetch nothing: pulls and containers stay lazy. A layer that cannot be fetched is an
// error for the reader (EIO), and a line in the node's log.
//
// Hazards:
//   - While the node does not run, the links lead nowhere. containerd then reports that it cannot
//     find the layer, also to a pull that wants to unpack it into another snapshotter. So links are
//     removed before a node is (Release), and if no namespace is configured any more.
//   - containerd counts the layers as its own: `docker images` shows their sizes.
//   - containerd looks layers up while its database is locked. No lookup may wait
//     (rootNode.Lookup).
//
// On disk:
//
//	ROOT/blobs.json         where the links are; it is written before the first link
//	ROOT/blobs              the mount point
//	CONTENT/blobs/sha256/*  links, in containerd's content store
//	CONTENT/lighter/        unfinished layers
package blobs
