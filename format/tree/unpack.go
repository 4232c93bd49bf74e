package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
)

// An unpacker does to a volume what containerd's archive.Apply does to a
// directory, entry by entry. Layers above the lowest know nothing of those
// below but the attributes of directories, and leave whiteouts behind.
type unpacker struct {
	*volume
	lower []*volume // of the layers below, topmost first

	dirs []namedDir

	// Of the lowest layer only, which carries its whiteouts out itself.
	implicit map[*Node]struct{} // directories that no entry has named so far
	marks    *marks             // of paths that are not there any more
}

// namedDir is an entry for a directory, whose time is set at the end because
// what happens in the directory changes it.
type namedDir struct {
	name  string // as the entry has it
	mtime Time
}

func newUnpacker(b *budget, lower []*volume) *unpacker {
	return &unpacker{volume: newVolume(b), lower: lower, implicit: map[*Node]struct{}{}}
}

func (u *unpacker) lowest() bool { return len(u.lower) == 0 }

// unpack does what one entry asks for.
func (u *unpacker) unpack(e *Entry) error {
	if err := u.budget.entry(); err != nil {
		return err
	}
	name := path.Clean(e.Name)
	dirName, base := path.Split(name)
	if base == "" || base == "." || base == ".." {
		return nil // the root, which belongs to no layer
	}
	if strings.IndexByte(name, 0) >= 0 {
		return errors.New("a NUL in its name")
	}
	at, err := u.resolve(dirName)
	if err != nil {
		return fmt.Errorf("resolve %q: %w", dirName, err)
	}
	dir, err := u.parent(at)
	if err != nil {
		return fmt.Errorf("make %q: %w", at.path, err)
	}
	at.node = dir
	if len(at.path)+1+len(base) > maxPath {
		return errNameTooLong
	}
	if base == opaqueMarker {
		return u.makeOpaque(at)
	}
	if victim, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return u.whiteout(at, victim)
	}
	return u.create(at, base, e)
}

// whiteout hides what is below under the name. The lowest layer has nothing
// below, so there it removes what the layer itself has put there.
func (u *unpacker) whiteout(at place, victim string) error {
	if victim == "" || victim == "." || victim == ".." {
		return errors.New("a whiteout of no name")
	}
	if !u.lowest() {
		if u.lookup(at.node, victim) != nil {
			return errExist
		}
		return u.insert(at.node, victim, &Node{Mode: ModeChar})
	}
	if len(victim) > maxName {
		return errNameTooLong
	}
	if u.lookup(at.node, victim) != nil {
		return u.removeMarked(at, victim)
	}
	return nil
}

// makeOpaque hides everything below a directory.
func (u *unpacker) makeOpaque(at place) error {
	if !u.lowest() {
		u.opaque[at.node] = struct{}{}
		return nil
	}
	first, err := u.firstOpaque(at.path)
	if err != nil || !first {
		return err
	}
	return u.clear(at)
}

// create puts what e describes at a name, in place of what is there.
func (u *unpacker) create(at place, base string, e *Entry) error {
	old := u.lookup(at.node, base)
	if old != nil && !(old.IsDir() && e.Type == tar.TypeDir) {
		if err := u.removeMarked(at, base); err != nil {
			return err
		}
		old = nil
	}
	if e.Type == tar.TypeXGlobalHeader {
		return u.mark(at.path, base)
	}
	n, err := u.node(at.node, old, e)
	if err != nil {
		return err
	}
	if old == nil {
		if err := u.insert(at.node, base, n); err != nil {
			return err
		}
	}
	before := n.xattrsMemory()
	if err := n.setAttributes(e); err != nil {
		return err
	}
	if err := u.budget.keepXattrs(n, before); err != nil {
		return err
	}
	if n.IsDir() {
		delete(u.implicit, n)
		return u.keepDir(e)
	}
	return nil
}

// keepDir remembers to set a directory's time at the end.
func (u *unpacker) keepDir(e *Entry) error {
	u.dirs = append(u.dirs, namedDir{e.Name, e.Mtime})
	return u.budget.keep(int64(len(e.Name)))
}

// node returns the inode that e is to name: old, the one that it links to, or
// a new one, which is not filled with attributes yet.
func (u *unpacker) node(dir, old *Node, e *Entry) (*Node, error) {
	n := &Node{}
	switch e.Type {
	case tar.TypeDir:
		if old != nil {
			return old, nil
		}
		n.Mode = ModeDir
	case tar.TypeReg:
		if err := e.checkContent(); err != nil {
			return nil, err
		}
		n.Mode, n.Size, n.Content = ModeRegular, e.Size, e.Content
	case tar.TypeSymlink:
		// The kernel takes 4,095 bytes, and no link to nothing.
		if e.Linkname == "" || len(e.Linkname) > 4095 || strings.IndexByte(e.Linkname, 0) >= 0 {
			return nil, fmt.Errorf("a link to a path of %d bytes: %w", len(e.Linkname), errInvalid)
		}
		n.Mode, n.Size, n.Link = ModeSymlink|0o777, int64(len(e.Linkname)), e.Linkname
	case tar.TypeLink:
		target, err := u.linkTarget(e.Linkname)
		if err != nil {
			return nil, fmt.Errorf("link to %q: %w", e.Linkname, err)
		}
		return target, nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if err := n.setDevice(e); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("an entry of type %q", e.Type)
	}
	if err := u.budget.keep(int64(len(n.Link) + len(n.Content.Inline) + extentMemory*len(n.Content.Extents))); err != nil {
		return nil, err
	}
	n.inherit(dir)
	return n, u.budget.keepXattrs(n, 0)
}

// setDevice makes n a device node or a FIFO. mknod takes 32 bits of a device
// number: 12 of the major and 20 of the minor remain.
func (n *Node) setDevice(e *Entry) error {
	if e.Major < 0 || e.Major > math.MaxUint32 || e.Minor < 0 || e.Minor > math.MaxUint32 {
		return fmt.Errorf("device number %d:%d", e.Major, e.Minor)
	}
	major, minor := uint64(e.Major)&0xfff, uint64(e.Minor)&0xfffff
	n.Rdev = major<<8 | minor&0xff | minor&^0xff<<12
	switch e.Type {
	case tar.TypeChar:
		n.Mode = ModeChar
	case tar.TypeBlock:
		n.Mode = ModeBlock
	default:
		n.Mode, n.Rdev = ModeFIFO, 0
	}
	return nil
}

// linkTarget finds what a hard link names: links on the way are followed, the
// last part is taken as it is.
func (u *unpacker) linkTarget(linkname string) (*Node, error) {
	dirName, base := path.Split(linkname)
	at, err := u.resolve(dirName)
	if err != nil {
		return nil, err
	}
	target := at.node
	switch {
	case at.node == nil:
		return nil, errNotExist
	case base == "..":
		return nil, errors.New("it is a directory")
	case base != "" && base != ".":
		if target, err = u.step(at.node, base); err != nil {
			return nil, err
		}
	}
	if target.IsDir() {
		return nil, errors.New("it is a directory")
	}
	return target, nil
}

// finish sets the times of the directories that had an entry. Their names are
// resolved anew, and what stands there now need not be what the entry made.
func (u *unpacker) finish() error {
	for _, dir := range u.dirs {
		at, err := u.resolve(path.Clean(dir.name))
		if err == nil && at.node == nil {
			err = errNotExist
		}
		if err != nil {
			return &EntryError{Entry: dir.name, Err: fmt.Errorf("set its time: %w", err)}
		}
		at.node.Mtime = dir.mtime
	}
	u.dirs = nil
	return nil
}
