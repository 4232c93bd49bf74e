package erofs

import (
	"encoding/binary"
	"fmt"
	"math"

	"lighter/format/tree"
)

// extent has the places of an inode's parts, in bytes of the image.
type extent struct {
	start  int64 // start of the inode
	xattrs int64 // length of the extended attributes, after the inode's 64 bytes
	rest   int64 // start of the inline data or the chunk index
	tail   int64 // length of the inline data or the chunk index
	block  int64 // start of the inode's separate blocks
	blocks int64 // number of separate blocks
}

// locate returns the places of an inode's parts, or an error for a layout that its type cannot
// have.
func (h *header) locate(nid uint64) (extent, error) {
	e := extent{start: int64(nid) * nidUnit, xattrs: h.xattrSize()}
	e.rest = e.start + inodeSize + e.xattrs
	if h.size > math.MaxInt64 {
		return e, fmt.Errorf("size is %d", h.size)
	}
	size, kind := int64(h.size), uint32(h.mode)&tree.ModeType
	data := kind == tree.ModeDir || kind == tree.ModeSymlink
	switch {
	case kind == tree.ModeRegular && h.format == indexed:
		if size < 1 || size > maxFile {
			return e, fmt.Errorf("file of %d bytes on the device", size)
		}
		if h.union != chunkFormat(size) {
			return e, fmt.Errorf("chunk format of a file of %d bytes is %#x", size, h.union)
		}
		e.rest, e.tail = roundUp(e.rest, indexSize), indexSize
		return e, nil
	case kind == tree.ModeRegular && h.format == inline:
		e.tail = size
	case data && size > 0 && h.format == inline:
		e.blocks = (size - 1) / BlockSize
		e.tail = size - e.blocks*BlockSize
	case data && size > 0 && h.format == plain:
		e.blocks = blocksOf(size)
	case !data && kind != tree.ModeRegular && kinds[kind>>12] != 0 && h.format == plain && size == 0:
	default:
		return e, fmt.Errorf("mode %#o, size %d and format %d are inconsistent", h.mode, size, h.format)
	}
	if kind == tree.ModeRegular && e.tail > BlockSize-inodeSize || e.rest%BlockSize+e.tail > BlockSize {
		return e, fmt.Errorf("%d bytes of inline data cross the end of a block", e.tail)
	}
	e.block = int64(h.union) * BlockSize
	return e, nil
}

// header reads an inode and locates its parts.
func (c *checker) header(nid uint64) (h header, e extent, err error) {
	if nid < rootNid || nid >= uint64(c.size/nidUnit) || nid%nidsABlock > nidsABlock-inodeSize/nidUnit {
		return h, e, bad("no inode can be at this nid")
	}
	b, err := c.bytes(int64(nid)*nidUnit, inodeSize)
	if err != nil {
		return h, e, err
	}
	if err := h.decode(b); err != nil {
		return h, e, bad("%w", err)
	}
	if e, err = h.locate(nid); err != nil {
		return h, e, bad("%w", err)
	}
	return h, e, nil
}

// read returns an inode, and checks all of it but the places of its parts. Inline is valid until
// the next read.
func (c *checker) read(nid uint64, h *header, e extent) (Inode, error) {
	in := Inode{Nid: nid, Mode: uint32(h.mode), UID: h.uid, GID: h.gid, Nlink: h.nlink,
		Mtime: tree.Time{Sec: int64(h.sec), Nsec: h.nsec}, Size: int64(h.size)}
	kind := in.Mode & tree.ModeType
	switch {
	case h.nlink < minLinks(in.Mode):
		return in, bad("link count is %d", h.nlink)
	case h.uid == noID || h.gid == noID:
		return in, bad("owner %d:%d", h.uid, h.gid)
	case h.sec > math.MaxInt64 || h.nsec > maxNsec:
		return in, bad("time of %d s and %d ns", h.sec, h.nsec)
	case (kind == tree.ModeFIFO || kind == tree.ModeSocket) && h.union != 0:
		return in, bad("FIFO or socket with device number %#x", h.union)
	}
	area, err := c.bytes(e.start+inodeSize, e.xattrs)
	if err != nil {
		return in, err
	}
	if in.Xattrs, err = parseXattrs(area); err != nil {
		return in, bad("%w", err)
	}
	switch kind {
	case tree.ModeRegular:
		if h.format == indexed {
			in.Device = true
			in.Address, err = c.address(h, e)
			return in, err
		}
		in.Inline, err = c.bytes(e.rest, e.tail)
	case tree.ModeSymlink:
		in.Link, err = c.target(h, e)
	case tree.ModeChar, tree.ModeBlock:
		in.Rdev = uint64(h.union)
	}
	return in, err
}

// minLinks returns the smallest link count of a file of that mode.
func minLinks(mode uint32) uint32 {
	if mode&tree.ModeType == tree.ModeDir {
		return 2
	}
	return 1
}

// address returns the offset of a file on the device.
func (c *checker) address(h *header, e extent) (uint64, error) {
	b, err := c.bytes(e.rest, indexSize)
	if err != nil {
		return 0, err
	}
	block := binary.LittleEndian.Uint32(b[4:])
	if binary.LittleEndian.Uint32(b) != 1<<16 {
		return 0, bad("chunk index does not name device 1")
	}
	if int64(block)+blocksOf(int64(h.size)) > int64(c.super.deviceBlocks) {
		return 0, bad("%d bytes from block %d on end beyond the device's %d blocks",
			h.size, block, c.super.deviceBlocks)
	}
	return uint64(block) * BlockSize, nil
}

// target returns the target of a symlink.
func (c *checker) target(h *header, e extent) (string, error) {
	if h.size > maxLink {
		return "", bad("link target of %d bytes", h.size)
	}
	from := e.rest
	if e.blocks > 0 {
		from = e.block
	}
	b, err := c.bytes(from, int64(h.size))
	if err != nil {
		return "", err
	}
	target := string(b)
	if err := checkLink(target); err != nil {
		return "", bad("%w", err)
	}
	return target, nil
}
