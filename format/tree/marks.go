package tree

import (
	"path"
	"strings"
)

// marks is what containerd remembers about a path in the lowest layer, even if another file is
// there now. There are marks for paths that the layer has created and removed again, and for opaque
// directories. Such paths are usually few; maxKept bounds the memory of their marks.
type marks struct {
	unpacked bool // an entry was unpacked at this path
	opaque   bool // the directory at this path was cleared
}

// marksMemory is the size of one path's marks in bytes, without the path.
const marksMemory = 100

// markUnpacked notes that an entry was unpacked at a path that does not exist now.
func (u *unpacker) markUnpacked(p string) error {
	m, err := u.marksAt(p)
	if err == nil {
		m.unpacked = true
	}
	return err
}

// marksAt returns the marks of a path, and creates them if necessary.
func (u *unpacker) marksAt(p string) (*marks, error) {
	if err := u.budget.step(); err != nil {
		return nil, err
	}
	if m := u.marks[p]; m != nil {
		return m, nil
	}
	if err := u.budget.keep(marksMemory + int64(len(p))); err != nil {
		return nil, err
	}
	m := &marks{}
	u.marks[strings.Clone(p)] = m
	return m, nil
}

// wasUnpacked reports whether an entry was unpacked at a path that does not exist now.
func (u *unpacker) wasUnpacked(p string) bool {
	m := u.marks[p]
	return m != nil && m.unpacked
}

// firstOpaque reports whether this is its first call for the path. containerd clears a path only
// once, even if it is another directory later.
func (u *unpacker) firstOpaque(p string) (bool, error) {
	m, err := u.marksAt(p)
	if err != nil {
		return false, err
	}
	first := !m.opaque
	m.opaque = true
	return first, nil
}

// clear removes the implicit directories below a directory, at any depth, with all of their
// contents.
func (u *unpacker) clear(at place) error {
	for i := 0; i < len(at.node.children); {
		if err := u.budget.step(); err != nil {
			return err
		}
		child := at.node.children[i]
		if _, implicit := u.implicit[child.Node]; implicit {
			if err := u.removeMarked(at, child.Name); err != nil { // moves another child to position i
				return err
			}
			continue
		}
		if child.Node.IsDir() {
			if err := u.clear(place{path: path.Join(at.path, child.Name), node: child.Node}); err != nil {
				return err
			}
		}
		i++
	}
	return nil
}

// removeMarked removes an existing name, with all names below it. In the lowest layer it marks the
// paths that entries have created.
func (u *unpacker) removeMarked(at place, name string) error {
	if u.lowest() {
		if err := u.markBelow(path.Join(at.path, name), u.lookup(at.node, name)); err != nil {
			return err
		}
	}
	u.remove(at.node, name)
	return nil
}

// markBelow marks the path of a node, and those below it.
func (u *unpacker) markBelow(p string, n *Node) error {
	m, err := u.marksAt(p)
	if err != nil {
		return err
	}
	_, implicit := u.implicit[n]
	m.unpacked = !implicit
	for _, child := range n.children {
		if err := u.markBelow(path.Join(p, child.Name), child.Node); err != nil {
			return err
		}
	}
	return nil
}
