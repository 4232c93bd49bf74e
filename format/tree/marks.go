package tree

import (
	"path"
	"strings"
)

// marks are what containerd remembers of the lowest layer's paths, not of its files, as a tree of
// names. They exist for paths that the layer has unpacked and removed again, and for opaque
// directories. Usually that is few; maxKept bounds them.
type marks struct {
	below    map[string]*marks
	unpacked bool // an entry was unpacked at this path
	opaque   bool // the directory at this path was cleared
}

// marksMemory is the size of one path's marks in bytes, with their map.
const marksMemory = 320

// find returns the marks of a path, or nil.
func (m *marks) find(p string) *marks {
	for rest := p; rest != "" && m != nil; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		m = m.below[name]
	}
	return m
}

// mark notes that an entry was unpacked at a path that does not exist.
func (u *unpacker) mark(dir, name string) error {
	if !u.lowest() {
		return nil
	}
	m, err := u.marksAt(dir)
	if err == nil {
		m, err = u.marksBelow(m, name)
	}
	if err == nil {
		m.unpacked = true
	}
	return err
}

// marksAt returns the marks of a path, and creates them if necessary.
func (u *unpacker) marksAt(p string) (m *marks, err error) {
	if u.marks == nil {
		u.marks = &marks{}
	}
	m = u.marks
	for rest := p; rest != "" && err == nil; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		m, err = u.marksBelow(m, name)
	}
	return m, err
}

// marksBelow returns the marks of a name in the directory of m, and creates them if necessary.
func (u *unpacker) marksBelow(m *marks, name string) (*marks, error) {
	if err := u.budget.step(); err != nil {
		return nil, err
	}
	if next := m.below[name]; next != nil {
		return next, nil
	}
	if err := u.budget.keep(marksMemory + int64(len(name))); err != nil {
		return nil, err
	}
	if m.below == nil {
		m.below = map[string]*marks{}
	}
	next := &marks{}
	m.below[strings.Clone(name)] = next
	return next, nil
}

// wasUnpacked reports whether an entry was unpacked at a path that does not exist.
func (u *unpacker) wasUnpacked(p string) bool {
	m := u.marks.find(p)
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

// removeMarked removes an existing name, with all names below it, and marks the paths that entries
// have created.
func (u *unpacker) removeMarked(at place, name string) error {
	if u.lowest() {
		m, err := u.marksAt(at.path)
		if err == nil {
			m, err = u.marksBelow(m, name)
		}
		if err == nil {
			err = u.markBelow(m, u.lookup(at.node, name))
		}
		if err != nil {
			return err
		}
	}
	u.remove(at.node, name)
	return nil
}

func (u *unpacker) markBelow(m *marks, n *Node) error {
	_, implicit := u.implicit[n]
	m.unpacked = !implicit
	for _, child := range n.children {
		below, err := u.marksBelow(m, child.Name)
		if err == nil {
			err = u.markBelow(below, child.Node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
