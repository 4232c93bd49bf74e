// Package erofs promises a metadata image that Linux mounts: a file system in
// the EROFS format that holds every name, inode, extended attribute and small
// file of a tree, and says of every other file where on the one data device it
// lies. The same tree with the same places always gives the same bytes.
//
// It also reads such images back (Open), to check them: what a hostile image
// could say to confuse the kernel or a program is refused with an error, in
// bounded time and memory, so that a node can check one before it hands it to
// the kernel, which itself checks little.
//
// It refuses to hold file data beyond inline files, to compress, to share
// extended attributes between inodes, and to read or write a file system that
// is laid out in any other way than disk.go says. The format is the kernel's
// (Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h); what is used
// of it needs Linux 5.16.
//
// Hazards: the bytes are part of the tree ID, so that a change of layout needs
// a new format number (TestGolden notices). The kernel zeroes nothing behind
// the end of a file on the device: what the device has there, in the last
// page, is what a program sees that maps the file.
package erofs
