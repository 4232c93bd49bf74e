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

// plan is where everything lies in the image: what has to be known before its
// first byte is written.
//
// The order is that of a walk, so that listing a directory and looking at each
// of its entries reads the image from front to back: the root, then for each
// directory, parents first and in the order of their names, all of its
// children that have no place yet. A directory's blocks lie among its
// children, at the first end of a block.
type plan struct {
	place        func(*tree.Node) uint64
	deviceBlocks int64

	inodes []spot               // by number, in order of their places
	links  map[*tree.Node]*link // of those with more than one name
	end    int64                // first byte that is not given away
	spills []spill              // blocks that wait for an inode to end a block
	digest hash.Hash
	buf    []byte
}

// spot is what is kept of one inode. There may be a million of them.
type spot struct {
	nid   uint32
	block uint32 // first block: on the device for a file, in the image for all else
	first uint32 // of a directory: the number of the first child that has its place there
}

// link counts the names of an inode.
type link struct{ number, left uint32 }

// spill is what lies in blocks of its own: a directory's blocks or a long
// link's target.
type spill struct {
	dir    // or in node alone the symlink
	blocks int64
}

// dir is a directory in a walk.
type dir struct {
	node           *tree.Node
	number, parent uint32
	path           int // length of its path
}

// shape is how an inode is stored, which follows from the node alone.
type shape struct {
	format uint16
	size   int64 // i_size
	xattrs int64 // bytes
	head   int64 // bytes of the inode, its xattrs and its chunk index
	tail   int64 // bytes of inline data behind that
	blocks int64 // blocks of its own in the image
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

// split puts the last part of the data behind the inode if both fit into a
// block, else into a block like the rest.
func (s *shape) split(blocks, last int64) {
	s.blocks = blocks + 1
	if s.head+last <= BlockSize {
		s.format, s.tail, s.blocks = inline, last, blocks
	}
}

// check refuses what EROFS cannot hold, and nodes that no Tree has.
func (s *shape) check(n *tree.Node) error {
	minLinks := uint32(1)
	if n.IsDir() {
		minLinks = 2
	}
	switch {
	case kindOf(n.Mode) == 0 || n.Mode > math.MaxUint16:
		return fmt.Errorf("mode %#o is of no file type", n.Mode)
	case n.Nlink < minLinks:
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

// walk calls enter with each directory and then visit with each of its names,
// in the image's order. visit gives the inode's number and tells whether this
// is the first of its names.
func walk(root *tree.Node, enter func(dir) error,
	visit func(parent dir, d tree.Dirent) (number uint32, first bool, err error)) error {
	stack := []dir{{node: root}}
	for len(stack) > 0 {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if err := enter(d); err != nil {
			return err
		}
		base := len(stack)
		for _, c := range d.node.Children() {
			number, first, err := visit(d, c)
			if err != nil {
				return err
			}
			if first && c.Node.IsDir() {
				stack = append(stack, dir{c.Node, number, d.number, d.path + 1 + len(c.Name)})
			}
		}
		slices.Reverse(stack[base:])
	}
	return nil
}

// makePlan gives each inode of the tree its place.
func makePlan(t *tree.Tree, deviceSize uint64, place func(*tree.Node) uint64) (*plan, error) {
	if deviceSize%BlockSize != 0 {
		return nil, fmt.Errorf("device of %d bytes is not of whole blocks", deviceSize)
	}
	if deviceSize/BlockSize > maxBlocks {
		return nil, fmt.Errorf("device of %d bytes: %w", deviceSize, ErrTooLarge)
	}
	p := &plan{place: place, deviceBlocks: int64(deviceSize / BlockSize), end: BlockSize,
		links: map[*tree.Node]*link{}, digest: sha256.New()}
	if !t.Root.IsDir() {
		return nil, errors.New("the tree's root is not a directory")
	}
	if _, err := p.add(t.Root, ""); err != nil {
		return nil, atPath(t, t.Root, "", err)
	}
	var last string
	err := walk(t.Root, func(d dir) error {
		last = ""
		return p.enter(d)
	}, func(parent dir, d tree.Dirent) (uint32, bool, error) {
		number, first, err := p.visit(parent, d, last)
		if err != nil {
			err = atPath(t, parent.node, d.Name, err)
		}
		last = d.Name
		return number, first, err
	})
	if err != nil {
		return nil, err
	}
	p.flush()
	p.end = roundUp(p.end, BlockSize)
	return p, p.checkSize()
}

// enter notes where a directory's children begin and that its blocks are due.
func (p *plan) enter(d dir) error {
	s, err := shapeOf(d.node)
	if err != nil {
		return err
	}
	p.inodes[d.number].first = uint32(len(p.inodes))
	if s.blocks > 0 {
		p.spills = append(p.spills, spill{d, s.blocks})
	}
	return nil
}

// visit gives the inode behind a name its place, if it has none yet. last is
// the name before it.
func (p *plan) visit(parent dir, d tree.Dirent, last string) (number uint32, first bool, err error) {
	if err := checkName([]byte(d.Name)); err != nil {
		return 0, false, err
	}
	if d.Name <= last {
		return 0, false, fmt.Errorf("comes after %q", last)
	}
	if parent.path+1+len(d.Name) > maxPath {
		return 0, false, fmt.Errorf("path of more than %d bytes: %w", maxPath, ErrTooLarge)
	}
	linked := d.Node.Nlink > 1 && !d.Node.IsDir()
	if l := p.links[d.Node]; linked && l != nil {
		if l.left == 0 {
			return 0, false, fmt.Errorf("more names than its link count, %d", d.Node.Nlink)
		}
		l.left--
		return l.number, false, nil
	}
	number, err = p.add(d.Node, d.Name)
	if err == nil && linked {
		p.links[d.Node] = &link{number, d.Node.Nlink - 1}
	}
	return number, true, err
}

// add gives an inode its place.
func (p *plan) add(n *tree.Node, name string) (number uint32, err error) {
	s, err := shapeOf(n)
	if err != nil {
		return 0, err
	}
	number = uint32(len(p.inodes))
	in := spot{}
	if s.format == indexed {
		if in.block, err = p.deviceBlock(n, s.size); err != nil {
			return 0, err
		}
	}
	in.nid = uint32(p.allot(s) / nidUnit)
	p.inodes = append(p.inodes, in)
	if s.blocks > 0 && !n.IsDir() {
		p.spills = append(p.spills, spill{dir{node: n, number: number}, s.blocks})
	}
	p.buf = appendInode(p.buf[:0], n, number, &s, in.block)
	p.buf = append(append(p.buf, name...), 0)
	p.digest.Write(p.buf)
	if p.end > MaxSize {
		return 0, p.checkSize()
	}
	return number, nil
}

func (p *plan) checkSize() error {
	if p.end > MaxSize {
		return fmt.Errorf("image of more than %d bytes: %w", int64(MaxSize), ErrTooLarge)
	}
	return nil
}

// deviceBlock asks where on the device a file starts.
func (p *plan) deviceBlock(n *tree.Node, size int64) (uint32, error) {
	offset := p.place(n)
	block := offset / BlockSize
	if offset%BlockSize != 0 || block > uint64(p.deviceBlocks) || int64(block)+blocksOf(size) > p.deviceBlocks {
		return 0, fmt.Errorf("%d bytes at %d do not lie in whole blocks of a device of %d",
			size, offset, p.deviceBlocks*BlockSize)
	}
	return uint32(block), nil
}

// allot returns the offset of an inode. One that a block can hold does not
// cross the end of a block; of a larger one neither the 64 bytes of the inode
// nor the inline data do.
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

// flush gives the blocks that are due their places.
func (p *plan) flush() {
	for _, s := range p.spills {
		p.end = roundUp(p.end, BlockSize)
		p.inodes[s.number].block = uint32(p.end / BlockSize)
		p.end += s.blocks * BlockSize
	}
	p.spills = p.spills[:0]
}

// uuid names the file system, for overlayfs and for whoever lists mounts. It
// follows from what is in the image, or nearly all of that.
func (p *plan) uuid() (u [16]byte) {
	copy(u[:], p.digest.Sum(nil))
	u[6] = u[6]&0x0f | 0x80 // RFC 9562: version 8, of the vendor's making
	u[8] = u[8]&0x3f | 0x80
	return u
}

// atPath adds the path of a directory's entry to an error. It searches for the
// directory, for a plan has no room for paths.
func atPath(t *tree.Tree, parent *tree.Node, name string, err error) error {
	type named struct {
		node *tree.Node
		path string
	}
	for todo := []named{{t.Root, "/"}}; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if at.node == parent {
			return fmt.Errorf("%q: %w", at.path+name, err)
		}
		for _, c := range at.node.Children() {
			if c.Node.IsDir() {
				todo = append(todo, named{c.Node, at.path + c.Name + "/"})
			}
		}
	}
	return err
}
