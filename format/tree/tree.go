// Package tree merges the layers of a chain in memory, with the result that containerd's overlayfs
// snapshotter shows: the same names, types, modes, owners, sizes, times, link targets, device
// numbers, hard-link groups, extended attributes and contents. Layers that containerd refuses to
// unpack are refused here, too.
//
// Scan reads a layer, RecordWriter and RecordReader store its entries without the contents, and
// Apply merges records into a Tree. The package uses no file system, network or clock: the same
// records always give the same tree.
//
// Intentional differences from an unpacked image:
//   - Sizes, link counts and inode numbers of directories differ.
//   - The root, and directories that a layer changes without an entry for them, have fixed times:
//     the time in the next lower layer that has the directory, or 1970. containerd leaves the time
//     of unpacking.
//   - A directory never lists a whiteout. overlayfs lists a whiteout in a directory that no lower
//     layer has, although the whiteout cannot be opened.
//
// Where unpacking depends on the machine, the result is fixed here:
//   - A link that containerd lets the kernel follow out of the layer's directory leads to nothing.
//   - Paths have at most 4,000 bytes. The kernel's 4,095 include containerd's own directory.
//   - Only EROFS limits the tree. ext4 allows 65,000 hard links to a file and 4 KiB of extended
//     attributes an inode. It stores attributes of the namespace "gnu.", which are dropped here as
//     on other file systems.
//   - The kernel supports POSIX ACLs, and no security module adds labels to files.
//
// The package is large because containerd's unpacking and the kernel's overlayfs have many rules:
// for paths, whiteouts, hard links, ACLs and other attributes. All of them apply to one form of a
// directory in memory (volume), which no other package needs.
package tree

import "lighter/format/chunk"

// Linux file type and permission bits, as in st_mode.
const (
	ModeType    = 0o170000
	ModeSocket  = 0o140000
	ModeSymlink = 0o120000
	ModeRegular = 0o100000
	ModeBlock   = 0o060000
	ModeDir     = 0o040000
	ModeChar    = 0o020000
	ModeFIFO    = 0o010000
)

// InlineLimit is the maximum size in bytes of a file whose content is in the metadata image and not
// in chunks. It determines tree IDs. docs/decisions/small-files.md has the measurements.
const InlineLimit = 512

// Extent is a run of a file's bytes: a chunk or, if ID is the zero value, a hole of Length bytes.
type Extent struct {
	ID     chunk.ID
	Length int64
}

// IsHole reports whether the extent is a hole.
func (e Extent) IsHole() bool { return e.ID.IsZero() }

// Content is the content of a regular file: Inline for a file of at most InlineLimit bytes,
// otherwise Extents, in order and without gaps. Smaller files, too, have Extents in a layer whose
// entries are known and whose contents are not, such as one with a table of contents.
type Content struct {
	Inline  []byte
	Extents []Extent
}

// Time is a point in time as Linux stores it.
type Time struct {
	Sec  int64 // seconds since 1970, never negative in a Tree
	Nsec uint32
}

// Xattr is an extended attribute.
type Xattr struct {
	Name  string // with its namespace: "user.x"
	Value []byte
}

// Node is an inode of a Tree. Hard links are one *Node with several names.
type Node struct {
	Mode    uint32 // type and permissions, as in st_mode
	UID     uint32
	GID     uint32
	Nlink   uint32 // of files as in overlayfs; of directories 2 plus the number of subdirectories
	Mtime   Time
	Rdev    uint64  // of block and character devices, as unix.Mkdev returns it
	Size    int64   // of regular files and symlinks, in bytes
	Link    string  // target of a symlink
	Xattrs  []Xattr // sorted by name
	Content Content // of regular files

	children []Dirent // of directories, sorted by name as bytes
}

// Dirent is a name in a directory.
type Dirent struct {
	Name string // 1 to 255 bytes, any but '/' and NUL; never "." or ".."
	Node *Node
}

// IsDir reports whether the node is a directory.
func (n *Node) IsDir() bool { return n.Mode&ModeType == ModeDir }

// IsRegular reports whether the node is a regular file.
func (n *Node) IsRegular() bool { return n.Mode&ModeType == ModeRegular }

// Children returns a directory's names, sorted as bytes. The caller must not change the slice.
func (n *Node) Children() []Dirent { return n.children }

// Tree is the merged view of a chain.
type Tree struct {
	Root *Node
}
