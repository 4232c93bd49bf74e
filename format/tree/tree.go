// Package tree promises that the merged view of a chain of layers is the one
// that containerd's overlayfs snapshotter shows for it: the same names, types,
// modes, owners, sizes, times, link targets, device numbers, hard-link groups,
// extended attributes and contents, and that what containerd refuses to unpack
// is refused.
//
// It reads layers (Scan), keeps them as records without their contents
// (RecordWriter, RecordReader), and merges records into a Tree (Apply). It
// refuses to touch a file system, a network or a clock: the same records always
// give the same tree.
//
// What differs from an unpacked image, on purpose: the sizes, link counts and
// inode numbers of directories, and the times of the root and of directories
// that a layer changes without naming them, which containerd leaves at the time
// of unpacking and which are fixed here (those of the layer below that has the
// directory, or 1970). A directory never lists a whiteout, as overlayfs does
// where nothing is below it, though nobody can open what it lists.
//
// What depends on the machine that unpacks is decided here once and for all:
//   - Where containerd lets the kernel follow a link out of the layer's
//     directory, to files of the machine, nothing is there.
//   - Paths have at most 4,000 bytes; the kernel's 4,095 include containerd's
//     own directory.
//   - The disk's file system limits nothing that EROFS can hold. ext4 takes
//     65,000 hard links to a file and 4 KiB of extended attributes an inode,
//     and keeps attributes of the kind "gnu.", which are left out here as on
//     other file systems.
//   - The kernel is one with POSIX ACLs, and no security module adds labels.
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

// InlineLimit is the size in bytes up to which a file's content lies in the
// metadata image itself and not in a chunk. It is part of the tree ID;
// docs/decisions/small-files.md has the measurements behind it.
const InlineLimit = 512

// An Extent is one run of a file's bytes: a chunk, or Length zeros where ID is
// the zero value.
type Extent struct {
	ID     chunk.ID
	Length int64
}

// IsHole tells whether the extent is a run of zeros.
func (e Extent) IsHole() bool { return e.ID.IsZero() }

// Content is what a regular file holds: Inline for a file of at most
// InlineLimit bytes, Extents (in order, without gaps) for every other.
type Content struct {
	Inline  []byte
	Extents []Extent
}

// Time is a point in time as Linux keeps it.
type Time struct {
	Sec  int64 // seconds since 1970, never negative in a Tree
	Nsec uint32
}

// Xattr is one extended attribute: the full name ("user.x"), any bytes as its
// value.
type Xattr struct {
	Name  string
	Value []byte
}

// Node is one inode of a Tree. Hard links are the same *Node under several
// names.
type Node struct {
	Mode    uint32 // type and permissions, as in st_mode
	UID     uint32
	GID     uint32
	Nlink   uint32  // of files as overlayfs reports it; of directories 2 plus their subdirectories
	Mtime   Time    //
	Rdev    uint64  // of block and character devices: major and minor as unix.Mkdev makes it
	Size    int64   // of regular files and symlinks, in bytes
	Link    string  // target of a symlink
	Xattrs  []Xattr // sorted by name
	Content Content // of regular files

	children []Dirent // of directories, sorted by name as bytes
}

// Dirent is one name in a directory.
type Dirent struct {
	Name string // 1 to 255 bytes, any but '/' and NUL; never "." or ".."
	Node *Node
}

// IsDir tells whether the node is a directory.
func (n *Node) IsDir() bool { return n.Mode&ModeType == ModeDir }

// IsRegular tells whether the node is a regular file.
func (n *Node) IsRegular() bool { return n.Mode&ModeType == ModeRegular }

// Children returns a directory's names, sorted bytewise. The caller must not
// change the slice.
func (n *Node) Children() []Dirent { return n.children }

// A Tree is the merged view of a chain.
type Tree struct {
	Root *Node
}
