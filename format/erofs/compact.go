package erofs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// The compact form of an image is a list of pieces, which are written one after the other.
// Numbers that grow from inode to inode, and from name to name, are relative to the previous ones.
// So the form compresses twice as well. docs/format.md has its bytes.
const (
	pieceBytes   = iota // bytes as they are
	pieceZeros          // zeros
	pieceInode          // an inode without extended attributes and inline data
	pieceEntries        // entries of a directory, in one block
)

// Flags of pieceInode: which fields follow, because they are not those of the previous inode.
const (
	newFormat = 1 << iota // format and xattrCount
	newMode
	newOwner
	newTime
	newLinks
	newUnion // otherwise it is what the format asks for: the chunk format, or 0
	hasIndex // the chunk index follows
)

// maxEntries is the most entries that a block has room for.
const maxEntries = BlockSize / direntSize

// relative has what the next piece is relative to.
type relative struct {
	header        // the last inode
	block  uint64 // of the device, after the last file
	nid    uint64 // of the last entry of a directory
}

// usualUnion returns i_u of an inode of the last format and size if nothing else is said.
func (r *relative) usualUnion() uint32 {
	if r.format == indexed && r.size >= 1 && r.size <= maxFile {
		return chunkFormat(int64(r.size))
	}
	return 0
}

// passed is called after a chunk index that begins at block.
func (r *relative) passed(block uint64) { r.block = block + (r.size+BlockSize-1)/BlockSize }

// WriteCompact writes the compact form of an image of size bytes, which r reads. It writes one for
// any bytes, and a short one for images.
func WriteCompact(w io.Writer, r io.Reader, size int64) error {
	c := &compactor{in: bufio.NewReaderSize(r, 64<<10), out: bufio.NewWriterSize(w, 64<<10), size: size}
	for c.at < size && c.err == nil {
		c.piece()
	}
	c.flush()
	return errors.Join(c.err, c.out.Flush())
}

// compactor writes a compact form. It keeps the first error.
type compactor struct {
	relative
	in    *bufio.Reader
	out   *bufio.Writer
	size  int64  // of the image
	at    int64  // bytes read
	plain []byte // bytes that are not written yet
	zeros uint64 // zeros after them
	err   error
}

// piece reads what may be a piece.
func (c *compactor) piece() {
	switch {
	case c.at%nidUnit == 0 && c.inode():
	case c.at%BlockSize == 0 && c.entries(BlockSize):
	default:
		b := c.peek(min(nidUnit-c.at%nidUnit, c.size-c.at))
		if bytes.Equal(b, zeros[:len(b)]) {
			c.zeros += uint64(len(b))
		} else {
			if c.zeros > 0 {
				c.flush()
			}
			c.plain = append(c.plain, b...)
		}
		if len(c.plain) >= 32<<10 {
			c.flush()
		}
		c.skip(len(b))
	}
}

// peek returns the next n bytes; none after an error.
func (c *compactor) peek(n int64) []byte {
	b, err := c.in.Peek(int(n))
	if err != nil && c.err == nil {
		c.err = err
		return nil
	}
	return b
}

func (c *compactor) skip(n int) {
	_, _ = c.in.Discard(n) // they were peeked at
	c.at += int64(n)
}

// flush writes the pending bytes and zeros.
func (c *compactor) flush() {
	var b []byte
	if len(c.plain) > 0 {
		b = append(binary.AppendUvarint(append(b, pieceBytes), uint64(len(c.plain))), c.plain...)
	}
	if c.zeros > 0 {
		b = binary.AppendUvarint(append(b, pieceZeros), c.zeros)
	}
	c.plain, c.zeros = c.plain[:0], 0
	c.write(b)
}

func (c *compactor) write(b []byte) {
	if _, err := c.out.Write(b); err != nil && c.err == nil {
		c.err = err
	}
}

// inode reads the next bytes if they are the next inode.
func (c *compactor) inode() bool {
	b, err := c.in.Peek(inodeSize + indexSize)
	if err != nil || c.at == 0 || c.at+inodeSize+indexSize > c.size {
		return false
	}
	var h header
	if err := h.decode(b); err != nil || h.number != c.number+1 {
		return false
	}
	e, err := h.locate(uint64(c.at / nidUnit))
	if err != nil {
		return false
	}
	c.flush()
	had := c.header
	c.header = h
	flags, rest := byte(0), []byte(nil)
	add := func(flag byte, values ...uint64) {
		flags |= flag
		for _, v := range values {
			rest = binary.AppendUvarint(rest, v)
		}
	}
	if h.format != had.format || h.xattrCount != had.xattrCount {
		add(newFormat, uint64(h.format), uint64(h.xattrCount))
	}
	if h.mode != had.mode {
		add(newMode, uint64(h.mode))
	}
	if h.uid != had.uid || h.gid != had.gid {
		add(newOwner, uint64(h.uid), uint64(h.gid))
	}
	if h.sec != had.sec || h.nsec != had.nsec {
		rest = binary.AppendVarint(rest, int64(h.sec-had.sec))
		add(newTime, uint64(h.nsec))
	}
	if h.nlink != had.nlink {
		add(newLinks, uint64(h.nlink))
	}
	add(0, h.size)
	if h.union != c.usualUnion() {
		add(newUnion, uint64(h.union))
	}
	c.skip(inodeSize)
	b = b[inodeSize:]
	if h.format == indexed && h.xattrCount == 0 && bytes.Equal(b[:4], appendIndex(nil, 0)[:4]) {
		block := uint64(binary.LittleEndian.Uint32(b[4:]))
		flags |= hasIndex
		rest = binary.AppendVarint(rest, int64(block-c.block))
		c.passed(block)
		c.skip(indexSize)
	}
	c.write(append([]byte{pieceInode, flags}, rest...))
	if kindOf(uint32(h.mode)) == kindDir && h.xattrCount == 0 && e.tail > 0 {
		c.entries(e.tail)
	}
	return true
}

// entries reads the next n bytes, or the first of them, if they are entries of a directory.
func (c *compactor) entries(n int64) bool {
	b := c.peek(min(n, c.size-c.at))
	var all dirPacker
	var rest []byte
	nid := c.nid
	for d, err := range dirEntries(b) {
		if err != nil {
			return false
		}
		all.entries = append(all.entries, dirent{string(d.name), d.nid, d.kind})
		rest = binary.AppendVarint(rest, int64(d.nid-nid))
		rest = binary.AppendUvarint(append(rest, d.kind), uint64(len(d.name)))
		rest = append(rest, d.name...)
		nid = d.nid
	}
	count := len(all.entries)
	packed := all.finish()
	if count == 0 || !bytes.HasPrefix(b, packed) {
		return false
	}
	c.flush()
	c.nid = nid
	c.write(append(binary.AppendUvarint([]byte{pieceEntries}, uint64(count)), rest...))
	c.skip(len(packed))
	return true
}

// Expand returns a reader of the image of size bytes whose untrusted compact form r reads. What
// follows the form in r follows the image. The bytes have to be verified: a wrong form may lead to
// any. It needs little memory, whatever the size. The buffer of r has at least 255 bytes.
func Expand(r *bufio.Reader, size int64) io.Reader { return &expander{in: r, left: size} }

type expander struct {
	relative
	in    *bufio.Reader
	left  int64  // bytes of the image that were not produced yet
	plain int64  // of these, bytes of the current piece as they are
	zeros int64  // zeros after them
	buf   []byte // produced and not read yet
	dir   dirPacker
}

// Read implements io.Reader.
func (x *expander) Read(p []byte) (int, error) {
	for len(x.buf) == 0 && x.plain == 0 && x.zeros == 0 && x.left > 0 {
		if err := x.piece(); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("expand the metadata image: %w", err)
		}
	}
	var n int
	switch {
	case len(x.buf) > 0:
		n = copy(p, x.buf)
		x.buf = x.buf[n:]
		return n, nil
	case x.zeros > 0:
		n = int(min(int64(len(p)), x.zeros))
		clear(p[:n])
		x.zeros -= int64(n)
		return n, nil
	case x.plain > 0:
		n, err := x.in.Read(p[:min(int64(len(p)), x.plain)])
		x.plain -= int64(n)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	return x.in.Read(p)
}

// errEmptyPiece bounds the time of a form that compresses to nearly nothing: each piece leads to
// bytes of the image.
var errEmptyPiece = errors.New("a piece is empty")

// piece reads the next piece.
func (x *expander) piece() error {
	kind, err := x.in.ReadByte()
	if err != nil {
		return err
	}
	x.buf = x.buf[:0]
	switch kind {
	case pieceBytes, pieceZeros:
		n, err := x.number(uint64(x.left))
		if err == nil && n == 0 {
			err = errEmptyPiece
		}
		if err != nil {
			return err
		}
		if kind == pieceBytes {
			x.plain = int64(n)
		} else {
			x.zeros = int64(n)
		}
		x.left -= int64(n)
		return nil
	case pieceInode:
		err = x.inode()
	case pieceEntries:
		err = x.entries()
	default:
		err = fmt.Errorf("a piece of the kind %d", kind)
	}
	if x.left -= int64(len(x.buf)); err == nil && x.left < 0 {
		err = errors.New("its pieces are longer than the image")
	}
	return err
}

func (x *expander) inode() error {
	flags, err := x.in.ReadByte()
	if err != nil {
		return err
	}
	h := &x.header
	h.number++
	// fields reads fields if the flag is set.
	fields := func(flag byte, limit uint64, set ...func(n uint64)) {
		for _, set := range set {
			var n uint64
			if err == nil && flags&flag == flag {
				if n, err = x.number(limit); err == nil {
					set(n)
				}
			}
		}
	}
	fields(newFormat, math.MaxUint16, func(n uint64) { h.format = uint16(n) },
		func(n uint64) { h.xattrCount = uint16(n) })
	fields(newMode, math.MaxUint16, func(n uint64) { h.mode = uint16(n) })
	fields(newOwner, math.MaxUint32, func(n uint64) { h.uid = uint32(n) }, func(n uint64) { h.gid = uint32(n) })
	if err == nil && flags&newTime != 0 {
		var later int64
		later, err = binary.ReadVarint(x.in)
		h.sec += uint64(later)
	}
	fields(newTime, math.MaxUint32, func(n uint64) { h.nsec = uint32(n) })
	fields(newLinks, math.MaxUint32, func(n uint64) { h.nlink = uint32(n) })
	fields(0, math.MaxUint64, func(n uint64) { h.size = n })
	h.union = x.usualUnion()
	fields(newUnion, math.MaxUint32, func(n uint64) { h.union = uint32(n) })
	x.buf = h.append(x.buf)
	if err == nil && flags&hasIndex != 0 {
		var later int64
		later, err = binary.ReadVarint(x.in)
		block := x.block + uint64(later)
		x.buf = appendIndex(x.buf, uint32(block))
		x.passed(block)
	}
	return err
}

func (x *expander) entries() error {
	count, err := x.number(maxEntries)
	if err == nil && count == 0 {
		err = errEmptyPiece
	}
	if err != nil {
		return err
	}
	for range count {
		later, err := binary.ReadVarint(x.in)
		if err != nil {
			return err
		}
		kind, err := x.in.ReadByte()
		if err != nil {
			return err
		}
		n, err := x.number(maxName)
		if err != nil {
			return err
		}
		name, err := x.in.Peek(int(n))
		if err != nil {
			return err
		}
		x.nid += uint64(later)
		x.dir.entries = append(x.dir.entries, dirent{string(name), x.nid, kind})
		_, _ = x.in.Discard(len(name)) // they were peeked at
	}
	x.buf = x.dir.finish()
	return nil
}

// number reads a number from 0 to limit.
func (x *expander) number(limit uint64) (uint64, error) {
	n, err := binary.ReadUvarint(x.in)
	if err == nil && n > limit {
		err = fmt.Errorf("a number is %d: want at most %d", n, limit)
	}
	return n, err
}
