// Package erofs writes and reads metadata images: EROFS file systems, for Linux to mount, with all
// names, inodes, extended attributes and small files of a tree. Larger files are on one data
// device; the image has their offsets. The same tree with the same offsets always gives the same
// bytes.
//
// The kernel trusts much of what it reads. So a node checks the first block when it arrives
// (CheckFirstBlock), and the whole image before it is mounted (Open, Walk): a malicious hub must
// not get an invalid image into a kernel. In the tests the reader also checks the writer, together
// with the kernel, fsck.erofs and go-erofs.
//
// The package does not compress, does not share extended attributes between inodes, and puts no
// file data into the image except inline files. It reads only what it writes; docs/format.md has
// the bytes. The format is the kernel's. The features used need Linux 5.16.
//
// Hazards: the bytes are part of the tree ID, so a change of the layout needs a new format number
// (TestGolden notices). The kernel does not zero the last page of a file on the device after the
// file's end: a program that maps the file sees what the device has there.
package erofs
