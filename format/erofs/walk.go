package erofs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lighter/format/tree"
)

// Stats counts what an image has.
type Stats struct {
	Inodes int64
	Files  int64 // regular files
	Bytes  int64 // the sum of their sizes; shared data counts for each file
}

// Walk checks the whole image for what could confuse the kernel or a program: names that are
// invalid or out of order, directories that contain themselves or have two names, parts that
// overlap or are outside the image, files outside the device, inconsistent types, layouts and
// attributes, a wrong number of inodes, and inodes with more names than links. It accepts only a
// tree that Write could have written. As in Write, a file may have fewer names than links, because
// upper layers may have removed names. The link count of a directory is only checked to be 2 or
// more.
//
// It calls visit, if that is not nil, with each name: the root as "/", then the names of each
// directory, in the order of the image. Only the first name of an inode comes with the extended
// attributes. visit may keep what it gets. Walk stops at visit's first error and returns it.
//
// Time is linear in the size of the image, whatever is in it: each inode is checked once. For
// visit, an inode is read again at each further name, but only two blocks of it. Memory is 1 MiB,
// 1/256 of the size, and up to 128 MiB for inodes with several names and for pending directories:
// two million of either. An image that needs more is rejected. Errors wrap ErrInvalid, with path
// and nid, or are those of visit, the reader or the context.
func (m *Image) Walk(ctx context.Context, visit func(path string, in Inode) error) (Stats, error) {
	c := m.checker(visit)
	if err := c.run(ctx); err != nil {
		return Stats{}, err
	}
	if uint64(c.stats.Inodes) != m.super.inodes {
		return Stats{}, fmt.Errorf("%w: it has %d inodes, its superblock says %d",
			ErrInvalid, c.stats.Inodes, m.super.inodes)
	}
	return c.stats, nil
}

const (
	// maxMemory limits the memory for links and stack, in bytes.
	maxMemory  = 128 << 20
	linkMemory = 48 // of an entry of links
	dirMemory  = 48 // of an entry of stack, without its name
)

// checker is one walk over an image.
type checker struct {
	*pager
	super *superblock
	visit func(string, Inode) error
	used  []uint64            // a bit for each nid: whether its bytes are in use
	links map[uint64]hardLink // inodes that may have more names
	stack []pendingDir
	path  []byte // of the current directory, with a slash at its end
	names []byte // the current directory's current block
	stats Stats
	free  int64 // bytes left of maxMemory
}

// hardLink is an inode of which one name was read and others may follow.
type hardLink struct {
	left uint32 // further names that it may have
	kind uint8
}

// pendingDir is a directory that was met in its parent and not read yet. The first upTo bytes of
// the checker's path are the parent's path.
type pendingDir struct {
	nid, parent uint64
	name        string
	upTo        int
}

func (m *Image) checker(visit func(string, Inode) error) *checker {
	return &checker{
		pager: newPager(m),
		super: &m.super,
		visit: visit,
		used:  make([]uint64, (m.size/nidUnit+63)/64),
		links: map[uint64]hardLink{},
		free:  maxMemory,
	}
}

func (c *checker) run(ctx context.Context) error {
	if err := c.inode(rootNid, kindDir, "/"); err != nil {
		return c.at("/", rootNid, err)
	}
	c.free -= dirMemory
	c.stack = append(c.stack, pendingDir{nid: rootNid, parent: rootNid})
	for len(c.stack) > 0 {
		d := c.stack[len(c.stack)-1]
		c.stack = c.stack[:len(c.stack)-1]
		c.free += dirMemory + int64(len(d.name))
		c.path = append(append(c.path[:d.upTo], d.name...), '/')
		base := len(c.stack)
		if err := c.dir(ctx, d); err != nil {
			return err
		}
		slices.Reverse(c.stack[base:])
	}
	return nil
}

// at adds path and nid to an error, if it is a badInode.
func (c *checker) at(name string, nid uint64, err error) error {
	var bad *badInode
	if !errors.As(err, &bad) {
		return err
	}
	return fmt.Errorf("%w: %q (nid %d): %w", ErrInvalid, string(c.path)+name, nid, bad.err)
}

// badInode is an error of an inode whose path is not known yet.
type badInode struct{ err error }

func (b *badInode) Error() string { return b.err.Error() }

func bad(format string, args ...any) error { return &badInode{fmt.Errorf(format, args...)} }

// dir reads a directory and checks all inodes in it.
func (c *checker) dir(ctx context.Context, d pendingDir) error {
	h, e, err := c.header(d.nid)
	if err != nil {
		return c.at("", d.nid, err)
	}
	r := dirReader{checker: c, dir: d}
	for i := range blocksOf(int64(h.size)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := c.dirBlock(&h, e, i)
		if err != nil {
			return err
		}
		c.names = append(c.names[:0], b...) // b is overwritten when inodes are read
		for entry, err := range dirEntries(c.names) {
			if err != nil {
				return c.at("", d.nid, err)
			}
			if err := r.entry(entry); err != nil {
				return err
			}
		}
	}
	if !r.dot || !r.dotdot {
		return c.at("", d.nid, bad("directory lacks \".\" or \"..\""))
	}
	return nil
}

// dirBlock returns the part of block i of a directory that is within the directory's size.
func (c *checker) dirBlock(h *header, e extent, i int64) ([]byte, error) {
	from := e.block + i*BlockSize
	if i >= e.blocks {
		from = e.rest
	}
	return c.bytes(from, min(int64(h.size)-i*BlockSize, BlockSize))
}

// dirReader is one directory being read.
type dirReader struct {
	*checker
	dir         pendingDir
	last        []byte // the previous name
	dot, dotdot bool
}

// entry checks an entry of the directory.
func (r *dirReader) entry(d dirEntry) error {
	if string(d.name) <= string(r.last) && r.last != nil {
		return r.at("", r.dir.nid, bad("name %q comes after %q", d.name, r.last))
	}
	r.last = append(r.last[:0], d.name...)
	switch string(d.name) {
	case ".":
		r.dot = true
		return r.self(d, r.dir.nid)
	case "..":
		r.dotdot = true
		return r.self(d, r.dir.parent)
	}
	if err := checkName(d.name); err != nil {
		return r.at("", r.dir.nid, bad("%w", err))
	}
	if err := r.child(d); err != nil {
		return r.at(string(d.name), d.nid, err)
	}
	return nil
}

// self checks an entry for the directory itself or its parent.
func (r *dirReader) self(d dirEntry, want uint64) error {
	if d.nid != want || d.kind != kindDir {
		return r.at("", r.dir.nid, bad("%q is nid %d of type %d, not directory %d", d.name, d.nid, d.kind, want))
	}
	return nil
}

// child checks a name and its inode.
func (r *dirReader) child(d dirEntry) error {
	if len(r.path)+len(d.name) > maxPath {
		return bad("path is longer than %d bytes", maxPath)
	}
	path := ""
	if r.visit != nil {
		path = string(r.path) + string(d.name)
	}
	if l, ok := r.links[d.nid]; ok {
		return r.otherName(d, l, path)
	}
	if err := r.inode(d.nid, d.kind, path); err != nil || d.kind != kindDir {
		return err
	}
	r.stack = append(r.stack, pendingDir{d.nid, r.dir.nid, string(d.name), len(r.path)})
	return r.reserve(dirMemory + int64(len(d.name)))
}

// otherName checks a further name of an inode. The inode was checked at its first name and is read
// again only for visit, without its extended attributes: an image may have a hundred million names
// of one inode, and this inode a quarter of a megabyte of attributes.
func (c *checker) otherName(d dirEntry, l hardLink, path string) error {
	if l.kind != d.kind {
		return bad("has type %d in its directory, elsewhere %d", d.kind, l.kind)
	}
	if l.left == 0 {
		return bad("has more names than its link count says")
	}
	l.left--
	c.links[d.nid] = l
	if c.visit == nil {
		return nil
	}
	h, e, err := c.header(d.nid)
	if err != nil {
		return err
	}
	e.xattrs = 0 // visit got them with the first name
	in, err := c.read(d.nid, &h, e)
	if err != nil {
		return err
	}
	return c.show(path, in)
}

// show calls visit with an inode.
func (c *checker) show(path string, in Inode) error {
	if c.visit == nil {
		return nil
	}
	in.Inline = slices.Clone(in.Inline)
	return c.visit(path, in)
}

// inode checks an inode at its first name.
func (c *checker) inode(nid uint64, kind uint8, path string) error {
	h, e, err := c.header(nid)
	if err != nil {
		return err
	}
	if got := kindOf(uint32(h.mode)); got != kind || got == 0 {
		return bad("has type %d in its directory, mode %#o", kind, h.mode)
	}
	if err := c.markUsed(e.start, e.rest+e.tail-e.start); err != nil {
		return err
	}
	if err := c.markUsed(e.block, e.blocks*BlockSize); err != nil {
		return err
	}
	in, err := c.read(nid, &h, e)
	if err != nil {
		return err
	}
	c.stats.Inodes++
	if h.nlink > 1 && kind != kindDir {
		if err := c.reserve(linkMemory); err != nil {
			return err
		}
		c.links[nid] = hardLink{h.nlink - 1, kind}
	}
	if in.Mode&tree.ModeType == tree.ModeRegular {
		c.stats.Files++
		c.stats.Bytes += in.Size
	}
	return c.show(path, in)
}

// reserve accounts for memory, and fails if there is none left.
func (c *checker) reserve(bytes int64) error {
	if c.free -= bytes; c.free < 0 {
		return bad("too many directories, or inodes with several names, to check in %d bytes of memory", maxMemory)
	}
	return nil
}

// markUsed marks bytes of the image as used, in units of a nid. It fails if they are used already.
// So all inodes and their parts together are no larger than the image.
func (c *checker) markUsed(offset, n int64) error {
	if n == 0 {
		return nil
	}
	if offset < BlockSize || offset > c.size || n > c.size-offset {
		return bad("bytes %d to %d are not in the image", offset, offset+n)
	}
	for u := offset / nidUnit; u*nidUnit < offset+n; u++ {
		word, bit := &c.used[u/64], uint64(1)<<(u%64)
		if *word&bit != 0 {
			return bad("overlaps something else at byte %d", u*nidUnit)
		}
		*word |= bit
	}
	return nil
}
