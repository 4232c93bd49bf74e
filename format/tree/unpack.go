package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
)

// unpacker applies entries to a volume as containerd's archive.Apply does to a directory. In layers
// above the lowest it uses the layers below only for attributes of directories, and creates
// whiteouts.
type unpacker struct {
	*volume
	lower []*volume // of the layers below, topmost first

	dirs []namedDir

	// Used only in the lowest layer, where whiteouts remove files.
	implicit map[*Node]struct{} // directories that have no entry so far
	marks    map[string]*marks  // by path: of removed files, and of opaque directories
}

// namedDir is an entry for a directory. Its time is set at the end, as changes in the directory
// change the time.
type namedDir struct {
	name  string // of the entry
	mtime Time
}

func newUnpacker(b *budget, lower []*volume) *unpacker {
	return &unpacker{volume: newVolume(b), lower: lower, implicit: map[*Node]struct{}{}, marks: map[string]*marks{}}
}

func (u *unpacker) lowest() bool { return len(u.lower) == 0 }

// unpack applies one entry.
func (u *unpacker) unpack(e *Entry) error {
	if err := u.budget.entry(); err != nil {
		return err
	}
	name := path.Clean(e.Name)
	dirName, base := path.Split(name)
	if base == "" || base == "." || base == ".." {
		return nil // the root is not part of any layer
	}
	if strings.IndexByte(name, 0) >= 0 {
		return errors.New("NUL in the name")
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
	if base == OpaqueMarker {
		return u.makeOpaque(at)
	}
	if victim, ok := strings.CutPrefix(base, WhiteoutPrefix); ok {
		return u.whiteout(at, victim)
	}
	return u.create(at, base, e)
}

// whiteout hides a name of the layers below. In the lowest layer it removes what the layer itself
// has created there.
func (u *unpacker) whiteout(at place, victim string) error {
	if victim == "" || victim == "." || victim == ".." {
		return errors.New("whiteout without a name")
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

// makeOpaque hides the directory's contents in the layers below.
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

// create creates the file of an entry, in place of an existing one.
func (u *unpacker) create(at place, base string, e *Entry) error {
	old := u.lookup(at.node, base)
	if old != nil && !(old.IsDir() && e.Type == tar.TypeDir) {
		if err := u.removeMarked(at, base); err != nil {
			return err
		}
		old = nil
	}
	if e.Type == tar.TypeXGlobalHeader {
		if !u.lowest() {
			return nil
		}
		return u.markUnpacked(path.Join(at.path, base))
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
	if err := n.setAttributes(e); err != nil {
		return err
	}
	if err := u.budget.keepXattrs(n); err != nil {
		return err
	}
	if n.IsDir() {
		delete(u.implicit, n)
		return u.keepDir(e)
	}
	return nil
}

// keepDir notes a directory whose time is set at the end.
func (u *unpacker) keepDir(e *Entry) error {
	u.dirs = append(u.dirs, namedDir{e.Name, e.Mtime})
	return u.budget.keep(int64(len(e.Name)))
}

// node returns the inode of an entry: old, the target of a hard link, or a new one without the
// entry's attributes.
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
		// The kernel allows 4,095 bytes and no empty target.
		if e.Linkname == "" || len(e.Linkname) > 4095 || strings.IndexByte(e.Linkname, 0) >= 0 {
			return nil, fmt.Errorf("link target of %d bytes: %w", len(e.Linkname), errInvalid)
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
		return nil, fmt.Errorf("unknown entry type %q", e.Type)
	}
	size := len(n.Link) + len(n.Content.Inline) + extentMemory*len(n.Content.Extents)
	if err := u.budget.keep(int64(size)); err != nil {
		return nil, err
	}
	n.inherit(dir)
	return n, nil
}

// setDevice makes n a device node or a FIFO. As in mknod, a device number has 12 bits of the major
// and 20 bits of the minor number.
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

// linkTarget returns the target of a hard link. Symlinks in its directory are followed, its last
// element is not.
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

// finish sets the times of the directories that had an entry. Their names are resolved again, as
// later entries may have replaced them.
func (u *unpacker) finish() error {
	for _, dir := range u.dirs {
		at, err := u.resolve(path.Clean(dir.name))
		if err == nil && at.node == nil {
			err = errNotExist
		}
		if err != nil {
			return &EntryError{Entry: dir.name, Err: fmt.Errorf("set the time: %w", err)}
		}
		at.node.Mtime = dir.mtime
	}
	u.dirs = nil
	return nil
}
