// Package directory shows all images of the hubs in one directory, for tools that take a directory
// as a container's root: DIR/HOST/REPO:TAG and DIR/HOST/REPO@DIGEST. The node mounts an image's
// tree when somebody looks into it, and unmounts the tree when nobody has used it for a while.
//
// The names are a small FUSE file system (go-fuse). It answers from a list of the hubs' images, and
// asks about a single name that the list does not have. Files are read from the trees, which are
// mounted over the names (mount.Bind), so their readers do not depend on this file system. It ends
// with the daemon, and the next daemon mounts a new one. Processes that work in a tree, or have it
// as their root, keep it.
//
// # How a tree gets over its name
//
// A walk along DIR/HOST/REPO:TAG/FILE reaches the name's own directory if the tree is not mounted.
// The kernel then asks for FILE in it, or opens or enters the directory. To look up or list the
// name itself needs no request of this kind, so `ls -l` and `find -maxdepth` mount nothing. The
// answer is ESTALE: the kernel walks the path once more, and asks again for each name. The request
// for REPO:TAG is answered when the tree is mounted, so the walk now crosses into the tree. While
// the kernel waits for FILE, it holds the lock of the directory on which the tree has to be
// mounted. So that request is never answered late.
//
// A process may not see the mount: its mount namespace may be cut off from the node's, or it may
// have entered the directory before. Its second request is answered with the tree's file, read
// through this file system (through.go). Such readers are slower, and end with the daemon. They see
// only files that all users may read.
//
// When a name gets another tree, the kernel's next request for the name is answered with a new
// node, and the kernel detaches the previous tree.
//
// # Trust
//
// A tree is verified as for lighter mount: the hub's key signs which tree a chain has. A name with
// a digest is resolved by a signed statement, too. Which chain a tag has is the hub's word. Every
// user of the machine can read every image of the hub's domain.
//
// Hazards:
//   - The daemon itself walks the directory when it mounts and unmounts trees. It must not hold
//     d.mu or an image's lock that a request for a name needs. A request of the daemon never waits
//     for a mount (isOwn).
//   - A tree can be used where this package cannot see it, for example as a layer of an overlay. So
//     a device ends only when the kernel has closed it (mount.Mounts.UnmountUnused).
package directory
