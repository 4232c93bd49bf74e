package erofs

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Stats counts what an image has.
type Stats struct {
	Inodes      int64
	Names       int64 // entries of directories, without "." and ".."
	Dirs        int64
	Files       int64 // regular files
	Symlinks    int64
	Specials    int64 // devices, FIFOs and sockets
	DeviceFiles int64 // regular files on the device
	DeviceBytes int64 // the sum of their sizes; shared data counts for each file
	InlineBytes int64 // the sum of the sizes of all other regular files
}

// Walk checks the whole image for what could confuse the kernel or a program: names that are
// invalid or out of order, directories that contain themselves or have two names, parts that
// overlap or are outside the image, files outside the device, inconsistent types, layouts and
// attributes, and wrong counts. It accepts only a tree that Write could have written.
//
// It calls visit, if that is not nil, with each name: the root as "/", then the names of each
// directory, in the order of the image. visit may keep what it gets. Walk stops at visit's first
// error and returns it.
//
// Time is linear in the size of the image. Memory is 1 MiB, 1/256 of the size, and up to 128 MiB
// for inodes with several names and for pending directories: two million of either. An image that
// needs more is rejected. Errors wrap ErrInvalid, with path and nid, or are those of visit, the
// reader or the context.
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
	used  []uint64            // a bit for each nid: whether something has these bytes
	links map[uint64]hardLink // inodes that may have more names
	stack []pendingDir
	path  []byte // of the current directory, with a slash at its end
	names []byte // its current block
	stats Stats
	free  int64 // bytes left of maxMemory
}

// hardLink is an inode that has been seen and may be seen again.
type hardLink struct {
	left uint32 // further names that it must have
	kind uint8
}

// pendingDir is a directory that was met in its parent and not read yet. The first upTo bytes of
// path are the parent's.
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
	for left, i := int64(h.size), int64(0); left > 0; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		from, n := e.block+i*BlockSize, min(left, BlockSize)
		if i >= e.blocks {
			from = e.rest
		}
		b, err := c.bytes(from, n)
		if err != nil {
			return err
		}
		c.names = append(c.names[:0], b...) // b is overwritten when inodes are read
		if err := r.block(c.names); err != nil {
			return err
		}
		left -= n
	}
	if !r.dot || !r.dotdot {
		return c.at("", d.nid, bad("directory lacks \".\" or \"..\""))
	}
	return nil
}

// dirReader is one directory being read.
type dirReader struct {
	*checker
	dir         pendingDir
	last        []byte // the previous name
	dot, dotdot bool
}

func (r *dirReader) block(b []byte) error {
	var failed error // an error that has its path already
	err := parseDirBlock(b, func(name []byte, nid uint64, kind uint8) error {
		if string(name) <= string(r.last) && r.last != nil {
			return fmt.Errorf("name %q comes after %q", name, r.last)
		}
		r.last = append(r.last[:0], name...)
		switch string(name) {
		case ".":
			r.dot = true
			return r.self(name, nid, r.dir.nid, kind)
		case "..":
			r.dotdot = true
			return r.self(name, nid, r.dir.parent, kind)
		}
		failed = r.entry(name, nid, kind)
		return failed
	})
	if failed != nil || err == nil {
		return failed
	}
	return r.at("", r.dir.nid, bad("%w", err))
}

func (r *dirReader) self(name []byte, nid, want uint64, kind uint8) error {
	if nid != want || kind != kindDir {
		return fmt.Errorf("%q is nid %d of type %d, not directory %d", name, nid, kind, want)
	}
	return nil
}

// entry checks a name and its inode.
func (r *dirReader) entry(name []byte, nid uint64, kind uint8) error {
	if err := checkName(name); err != nil {
		return r.at("", r.dir.nid, bad("%w", err))
	}
	if len(r.path)+len(name) > maxPath {
		return r.at(string(name), nid, bad("path is longer than %d bytes", maxPath))
	}
	r.stats.Names++
	path := ""
	if r.visit != nil {
		path = string(r.path) + string(name)
	}
	if l, ok := r.links[nid]; ok {
		return r.at(string(name), nid, r.otherName(nid, kind, l, path))
	}
	if err := r.inode(nid, kind, path); err != nil {
		return r.at(string(name), nid, err)
	}
	if kind == kindDir {
		if err := r.reserve(dirMemory + int64(len(name))); err != nil {
			return r.at(string(name), nid, err)
		}
		r.stack = append(r.stack, pendingDir{nid, r.dir.nid, string(name), len(r.path)})
	}
	return nil
}

// otherName checks a further name of an inode.
func (c *checker) otherName(nid uint64, kind uint8, l hardLink, path string) error {
	if l.kind != kind {
		return bad("has type %d in its directory, elsewhere %d", kind, l.kind)
	}
	if l.left == 0 {
		return bad("has more names than its link count says")
	}
	l.left--
	c.links[nid] = l
	if c.visit == nil {
		return nil
	}
	h, e, err := c.header(nid)
	if err != nil {
		return err
	}
	return c.show(path, nid, &h, e)
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
	if err := c.claim(e.start, e.rest+e.tail-e.start); err != nil {
		return err
	}
	if err := c.claim(e.block, e.blocks*BlockSize); err != nil {
		return err
	}
	if err := c.attributes(&h, e); err != nil {
		return err
	}
	c.count(&h)
	if h.nlink > 1 && kind != kindDir {
		if err := c.reserve(linkMemory); err != nil {
			return err
		}
		c.links[nid] = hardLink{h.nlink - 1, kind}
	}
	if c.visit == nil {
		return nil
	}
	return c.show(path, nid, &h, e)
}

// reserve accounts for memory, and fails if there is none left.
func (c *checker) reserve(bytes int64) error {
	if c.free -= bytes; c.free < 0 {
		return bad("too many directories, or inodes with several names, to check in %d bytes of memory", maxMemory)
	}
	return nil
}

// claim marks bytes of the image as used, in units of a nid. It fails if they are used already, so
// a walk cannot read more than the image's size.
func (c *checker) claim(offset, n int64) error {
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
