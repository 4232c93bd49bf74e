// Package erofs promises a metadata image that Linux mounts: a file system in
// the EROFS format that holds every name, inode, extended attribute and small
// file of a tree, and says of every other file where on the one data device it
// lies. The same tree with the same places always gives the same bytes.
//
// The kernel reads these images, and takes much on trust. So a node checks the
// first block as it arrives (CheckFirstBlock) and the whole image before it is
// mounted for the first time (Open, Walk): a hub that signs nonsense shall not get
// it into a kernel. The same reader is the writer's oracle in the tests, beside
// the kernel, fsck.erofs and go-erofs.
//
// It refuses to hold file data beyond inline files, to compress, to share
// extended attributes between inodes, and to read or write a file system that
// is laid out in any other way than docs/format.md says. The format is the
// kernel's; what is used of it needs Linux 5.16.
//
// Hazards: the bytes are part of the tree ID, so that a change of layout needs
// a new format number (TestGolden notices). The kernel zeroes nothing behind
// the end of a file on the device: what the device has there, in the last
// page, is what a program sees that maps the file.
package erofs
