package erofs

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"lighter/format/tree"
)

// ErrTooLarge means that a name, a symlink's target, an extended attribute, a path, a file, an
// owner's ID, the device or the image is larger than EROFS or Linux allows, or empty where that is
// invalid.
var ErrTooLarge = errors.New("out of the bounds of EROFS")

// ErrXattrName means that EROFS cannot store an extended attribute of this name. It can store
// user.*, trusted.*, security.* and the two POSIX ACLs.
var ErrXattrName = errors.New("EROFS cannot store an extended attribute of that name")

// Write writes the metadata image of t to w and returns its size in bytes, a multiple of BlockSize.
// deviceSize is the size of the data device in bytes, also a multiple of BlockSize.
//
// place returns the offset on the device of a regular file with extents, a multiple of BlockSize.
// The file is contiguous there, and followed by zeros up to the end of its last block, which
// programs that map the file can see. place is called once for each such node, in the order of the
// inodes.
//
// Write checks the whole tree before it writes the first byte. It assumes that a node whose Nlink
// is 1 has one name. It needs 16 bytes of memory for each inode, and 60 more for one with several
// names.
//
// The error wraps ErrTooLarge or ErrXattrName if EROFS cannot represent the tree.
func Write(w io.Writer, t *tree.Tree, deviceSize uint64, place func(n *tree.Node) uint64) (size int64, err error) {
	p, err := makePlan(t, deviceSize, place)
	if err != nil {
		return 0, fmt.Errorf("plan metadata image: %w", err)
	}
	e := &emitter{plan: p, w: bufio.NewWriterSize(w, 256<<10)}
	if err := e.emit(t.Root); err != nil {
		return 0, fmt.Errorf("write metadata image: %w", err)
	}
	return p.end, nil
}

// emitter writes an image in the order of its plan.
type emitter struct {
	*plan
	w   *bufio.Writer
	at  int64 // bytes written
	buf []byte
	dir dirPacker
	due []dir // directories and symlinks whose separate blocks are not written yet
}

func (e *emitter) emit(root *tree.Node) error {
	super := superblock{inodes: uint64(len(e.inodes)), blocks: uint32(e.end / BlockSize),
		deviceBlocks: uint32(e.deviceBlocks), uuid: e.uuid()}
	if err := e.write(super.encode()); err != nil {
		return err
	}
	first, err := e.inode(dir{}, root, 0)
	if err != nil {
		return err
	}
	next := uint32(1)
	err = walk(first, func(d dir) {
		if d.blocks > 0 {
			e.due = append(e.due, d)
		}
	}, func(parent dir, d tree.Dirent) (dir, bool, error) {
		number, isFirst := e.number(d.Node, next)
		if !isFirst {
			return dir{}, false, nil
		}
		next++
		child, err := e.inode(parent, d.Node, number)
		return child, true, err
	})
	if err != nil {
		return err
	}
	if err := e.spillUpTo(e.end); err != nil {
		return err
	}
	if err := e.padTo(e.end); err != nil {
		return err
	}
	return e.w.Flush()
}

// number returns the number of a name's inode, and whether the inode is placed at this name. next
// is the number of the next inode to be placed.
func (e *emitter) number(n *tree.Node, next uint32) (uint32, bool) {
	if n.Nlink > 1 && !n.IsDir() {
		number := e.links[n].number
		return number, number == next
	}
	return next, true
}

// inode writes the separate blocks that are placed before an inode, and then the inode.
func (e *emitter) inode(parent dir, n *tree.Node, number uint32) (dir, error) {
	s, err := shapeOf(n)
	if err != nil {
		return dir{}, err
	}
	in := e.inodes[number]
	at := int64(in.nid) * nidUnit
	if err := e.spillUpTo(at); err != nil {
		return dir{}, err
	}
	if err := e.padTo(at); err != nil {
		return dir{}, err
	}
	placed := dir{node: n, number: number, parent: parent.number, blocks: s.blocks}
	e.buf = appendInode(e.buf[:0], n, number, &s, in.block)
	if n.IsDir() && s.tail > 0 {
		last, err := e.dirBlocks(placed, func([]byte) error { return nil })
		if err != nil {
			return dir{}, err
		}
		e.buf = append(e.buf, last...)
	}
	if s.blocks > 0 && !n.IsDir() {
		e.due = append(e.due, placed)
	}
	return placed, e.write(e.buf)
}

// spillUpTo writes the queued blocks before offset.
func (e *emitter) spillUpTo(offset int64) error {
	for len(e.due) > 0 {
		s := e.due[0]
		start := int64(e.inodes[s.number].block) * BlockSize
		if start >= offset {
			return nil
		}
		if err := e.padTo(start); err != nil {
			return err
		}
		if err := e.spill(s); err != nil {
			return err
		}
		if err := e.padTo(start + s.blocks*BlockSize); err != nil {
			return err
		}
		e.due = e.due[1:]
	}
	return nil
}

// spill writes the separate blocks of a directory or a symlink.
func (e *emitter) spill(s dir) error {
	if !s.node.IsDir() {
		return e.write([]byte(s.node.Link))
	}
	end := e.at + s.blocks*BlockSize
	last, err := e.dirBlocks(s, e.write)
	if err != nil || e.at == end { // the last block is inline
		return err
	}
	return e.write(last)
}

// dirBlocks calls closed with each block of a directory but the last, and returns the used part of
// the last.
func (e *emitter) dirBlocks(d dir, closed func([]byte) error) ([]byte, error) {
	next := e.inodes[d.number].first
	for name, n := range names(d.node) {
		number, kind := d.number, uint8(kindDir)
		switch {
		case n == nil && name == "..":
			number = d.parent
		case n != nil:
			var first bool
			if number, first = e.number(n, next); first {
				next++
			}
			kind = kindOf(n.Mode)
		}
		if err := e.dir.add(dirent{name, uint64(e.inodes[number].nid), kind}, closed); err != nil {
			return nil, err
		}
	}
	return e.dir.finish(), nil
}

// appendInode appends an inode with its extended attributes and inline data, but without the
// entries of a directory. block is the first block of the inode's other data.
func appendInode(b []byte, n *tree.Node, number uint32, s *shape, block uint32) []byte {
	h := header{
		format: s.format,
		mode:   uint16(n.Mode),
		size:   uint64(s.size),
		union:  block,
		number: number + 1,
		uid:    n.UID,
		gid:    n.GID,
		sec:    uint64(n.Mtime.Sec),
		nsec:   n.Mtime.Nsec,
		nlink:  n.Nlink,
	}
	if s.xattrs > 0 {
		h.xattrCount = uint16((s.xattrs-xattrHeadSize)/4 + 1)
	}
	switch n.Mode & tree.ModeType {
	case tree.ModeRegular:
		if s.format == indexed {
			h.union = chunkFormat(s.size)
		}
	case tree.ModeChar, tree.ModeBlock:
		// The low half of unix.Mkdev's result is the kernel's new_encode_dev. mknod(2) takes no
		// more either, so larger numbers lose the same bits.
		h.union = uint32(n.Rdev)
	}
	start := len(b)
	b = appendXattrs(h.append(b), n.Xattrs)
	switch {
	case s.format == indexed:
		b = append(b, zeros[:int(s.head)-indexSize-(len(b)-start)]...)
		b = appendIndex(b, block)
	case n.IsRegular():
		b = append(b, n.Content.Inline...)
	case s.format == inline && !n.IsDir():
		b = append(b, n.Link...)
	}
	return b
}

func (e *emitter) padTo(offset int64) error {
	for e.at < offset {
		if err := e.write(zeros[:min(offset-e.at, BlockSize)]); err != nil {
			return err
		}
	}
	return nil
}

func (e *emitter) write(b []byte) error {
	n, err := e.w.Write(b)
	e.at += int64(n)
	return err
}
