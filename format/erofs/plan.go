package erofs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"math"
	"slices"
	"strings"

	"lighter/format/tree"
)

// plan has the place of everything in the image. It must be known before the first byte is written.
//
// Inodes are placed in the order of a walk: first the root, then for each directory all its
// children that have no place yet. Parents come before their subdirectories, and subdirectories in
// the order of their names. So a program that lists a directory and reads the inode of each entry
// reads the image in order. A directory's blocks are among its children, at the first block
// boundary.
type plan struct {
	place        func(*tree.Node) uint64
	deviceBlocks int64

	inodes []spot               // by number, in the order of their places
	links  map[*tree.Node]*link // inodes with several names
	end    int64                // first free byte
	spills []dir                // inodes whose separate blocks are placed at the next block boundary
	digest hash.Hash
	buf    []byte
}

// spot is the place of one inode. It is small because there may be millions.
type spot struct {
	nid   uint32
	block uint32 // first block: on the device for a file, in the image for others
	first uint32 // of a directory: the number of the first inode that is placed as its child
}

// link is an inode with several names. left counts the names that were not met yet.
type link struct{ number, left uint32 }

// dir is a directory in a walk. A symlink that is too long to be inline is represented by a dir,
// too; only its node, number and blocks are set.
type dir struct {
	node           *tree.Node
	number, parent uint32
	path           string // with a slash at its end
	blocks         int64  // separate blocks in the image: entries, or the symlink's target
}

// shape is how an inode is stored. It depends on the node alone.
type shape struct {
	format uint16
	size   int64 // i_size
	xattrs int64 // bytes
	head   int64 // bytes of the inode, its xattrs and its chunk index
	tail   int64 // bytes of inline data after the head
	blocks int64 // separate blocks in the image
}

func shapeOf(n *tree.Node) (shape, error) {
	xattrs, err := xattrsSize(n.Xattrs)
	if err != nil {
		return shape{}, err
	}
	s := shape{format: plain, size: n.Size, xattrs: xattrs, head: inodeSize + xattrs}
	switch n.Mode & tree.ModeType {
	case tree.ModeDir:
		closed, last := dirSize(n)
		s.size = closed*BlockSize + last
		s.split(closed, last)
	case tree.ModeSymlink:
		s.size = int64(len(n.Link))
		s.split(0, s.size)
	case tree.ModeRegular:
		if len(n.Content.Extents) == 0 {
			s.format, s.tail = inline, n.Size
		} else {
			s.format, s.head = indexed, roundUp(s.head, indexSize)+indexSize
		}
	default:
		s.size = 0
	}
	return s, s.check(n)
}

// split puts the last part of the data after the inode if both fit into a block, else into a
// separate block like the rest.
func (s *shape) split(blocks, last int64) {
	s.blocks = blocks + 1
	if s.head+last <= BlockSize {
		s.format, s.tail, s.blocks = inline, last, blocks
	}
}

// check returns an error for nodes that EROFS cannot represent, and for invalid ones.
func (s *shape) check(n *tree.Node) error {
	switch {
	case kindOf(n.Mode) == 0 || n.Mode > math.MaxUint16:
		return fmt.Errorf("mode %#o is of no file type", n.Mode)
	case n.Nlink < minLinks(n.Mode):
		return fmt.Errorf("link count is %d", n.Nlink)
	case n.UID == noID || n.GID == noID:
		return fmt.Errorf("owner %d:%d: %w", n.UID, n.GID, ErrTooLarge)
	case n.Mtime.Sec < 0 || n.Mtime.Nsec > maxNsec:
		return fmt.Errorf("time of %d s and %d ns", n.Mtime.Sec, n.Mtime.Nsec)
	case n.Mode&tree.ModeType == tree.ModeSymlink:
		return checkLink(n.Link)
	case n.IsRegular() && s.format == inline && s.size != int64(len(n.Content.Inline)):
		return fmt.Errorf("size is %d, but there are %d bytes", s.size, len(n.Content.Inline))
	case n.IsRegular() && s.format == inline && s.size > BlockSize-inodeSize:
		return fmt.Errorf("inline file of %d bytes: %w", s.size, ErrTooLarge)
	case s.format == indexed && (s.size < 1 || s.size > maxFile):
		return fmt.Errorf("file of %d bytes: %w", s.size, ErrTooLarge)
	}
	return nil
}

func checkLink(target string) error {
	if len(target) == 0 || len(target) > maxLink {
		return fmt.Errorf("link target of %d bytes: %w", len(target), ErrTooLarge)
	}
	if strings.IndexByte(target, 0) >= 0 {
		return fmt.Errorf("link target %q has a NUL in it", target)
	}
	return nil
}

// walk calls enter with each directory and then visit with each of its names, in the image's order.
// visit returns the inode of a name as a dir, and whether this is the inode's first name.
func walk(root dir, enter func(dir), visit func(parent dir, d tree.Dirent) (child dir, first bool, err error)) error {
	stack := []dir{root}
	for len(stack) > 0 {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		enter(d)
		base := len(stack)
		for _, c := range d.node.Children() {
			child, first, err := visit(d, c)
			if err != nil {
				return err
			}
			if first && c.Node.IsDir() {
				stack = append(stack, child)
			}
		}
		slices.Reverse(stack[base:])
	}
	return nil
}

// makePlan places each inode of the tree.
func makePlan(t *tree.Tree, deviceSize uint64, place func(*tree.Node) uint64) (*plan, error) {
	if deviceSize%BlockSize != 0 {
		return nil, fmt.Errorf("device of %d bytes does not have whole blocks", deviceSize)
	}
	if deviceSize/BlockSize > maxBlocks {
		return nil, fmt.Errorf("device of %d bytes: %w", deviceSize, ErrTooLarge)
	}
	p := &plan{place: place, deviceBlocks: int64(deviceSize / BlockSize), end: BlockSize,
		links: map[*tree.Node]*link{}, digest: sha256.New()}
	if !t.Root.IsDir() {
		return nil, errors.New("the tree's root is not a directory")
	}
	root, err := p.add(t.Root, "")
	if err != nil {
		return nil, fmt.Errorf("%q: %w", "/", err)
	}
	root.path = "/"
	var last string
	err = walk(root, func(d dir) {
		last = ""
		p.inodes[d.number].first = uint32(len(p.inodes))
		if d.blocks > 0 {
			p.spills = append(p.spills, d)
		}
	}, func(parent dir, d tree.Dirent) (dir, bool, error) {
		child, first, err := p.visit(parent, d, last)
		if err != nil {
			err = fmt.Errorf("%q: %w", parent.path+d.Name, err)
		}
		last = d.Name
		return child, first, err
	})
	if err != nil {
		return nil, err
	}
	p.flush()
	p.end = roundUp(p.end, BlockSize)
	return p, p.checkSize()
}

// visit places the inode of a name, unless it is placed already. last is the previous name.
func (p *plan) visit(parent dir, d tree.Dirent, last string) (child dir, first bool, err error) {
	if err := checkName([]byte(d.Name)); err != nil {
		return dir{}, false, err
	}
	if d.Name <= last {
		return dir{}, false, fmt.Errorf("comes after %q", last)
	}
	if len(parent.path)+len(d.Name) > maxPath {
		return dir{}, false, fmt.Errorf("path of more than %d bytes: %w", maxPath, ErrTooLarge)
	}
	linked := d.Node.Nlink > 1 && !d.Node.IsDir()
	if l := p.links[d.Node]; linked && l != nil {
		if l.left == 0 {
			return dir{}, false, fmt.Errorf("more names than its link count, %d", d.Node.Nlink)
		}
		l.left--
		return dir{}, false, nil
	}
	child, err = p.add(d.Node, d.Name)
	if err == nil && linked {
		p.links[d.Node] = &link{child.number, d.Node.Nlink - 1}
	}
	if d.Node.IsDir() {
		child.parent, child.path = parent.number, parent.path+d.Name+"/"
	}
	return child, true, err
}

// add places an inode.
func (p *plan) add(n *tree.Node, name string) (dir, error) {
	s, err := shapeOf(n)
	if err != nil {
		return dir{}, err
	}
	placed := dir{node: n, number: uint32(len(p.inodes)), blocks: s.blocks}
	in := spot{}
	if s.format == indexed {
		if in.block, err = p.deviceBlock(n, s.size); err != nil {
			return dir{}, err
		}
	}
	in.nid = uint32(p.allot(s) / nidUnit)
	p.inodes = append(p.inodes, in)
	if s.blocks > 0 && !n.IsDir() {
		p.spills = append(p.spills, placed)
	}
	p.buf = appendInode(p.buf[:0], n, placed.number, &s, in.block)
	p.buf = append(append(p.buf, name...), 0)
	p.digest.Write(p.buf)
	return placed, p.checkSize()
}

func (p *plan) checkSize() error {
	if p.end > MaxSize {
		return fmt.Errorf("image of more than %d bytes: %w", int64(MaxSize), ErrTooLarge)
	}
	return nil
}

// deviceBlock returns the first block of a file on the device.
func (p *plan) deviceBlock(n *tree.Node, size int64) (uint32, error) {
	offset := p.place(n)
	block := offset / BlockSize
	if offset%BlockSize != 0 || block > uint64(p.deviceBlocks) || int64(block)+blocksOf(size) > p.deviceBlocks {
		return 0, fmt.Errorf("%d bytes at %d are not in whole blocks of a device of %d bytes",
			size, offset, p.deviceBlocks*BlockSize)
	}
	return uint32(block), nil
}

// allot returns the offset for an inode. If the inode and its inline data fit into a block, they do
// not cross a block boundary. Otherwise neither the 64 bytes of the inode nor the inline data cross
// a boundary.
func (p *plan) allot(s shape) int64 {
	p.end = roundUp(p.end, nidUnit)
	fits := func() bool {
		at := p.end % BlockSize
		if s.head+s.tail <= BlockSize {
			return at+s.head+s.tail <= BlockSize
		}
		return at+inodeSize <= BlockSize && (p.end+s.head)%BlockSize+s.tail <= BlockSize
	}
	if at := p.end % BlockSize; len(p.spills) > 0 && (at == 0 || at+s.head+s.tail > BlockSize) {
		p.flush()
	}
	for !fits() {
		p.end += nidUnit
	}
	offset := p.end
	p.end += s.head + s.tail
	return offset
}

// flush places the queued blocks.
func (p *plan) flush() {
	for _, s := range p.spills {
		p.end = roundUp(p.end, BlockSize)
		p.inodes[s.number].block = uint32(p.end / BlockSize)
		p.end += s.blocks * BlockSize
	}
	p.spills = p.spills[:0]
}

// uuid returns the UUID of the file system, which overlayfs uses. It depends on nearly everything
// in the image.
func (p *plan) uuid() (u [16]byte) {
	copy(u[:], p.digest.Sum(nil))
	u[6] = u[6]&0x0f | 0x80 // RFC 9562: version 8, vendor-specific
	u[8] = u[8]&0x3f | 0x80
	return u
}
