package tree

import (
	"path"
	"strings"
)

// marks remember, in the lowest layer, what containerd remembers of paths and
// not of files, as a tree of names. They are few: paths that the layer has
// unpacked and taken away again, and directories that it has made opaque.
type marks struct {
	below    map[string]*marks
	unpacked bool // an entry was unpacked at this path
	opaque   bool // the directory at this path was cleared
}

// at returns the marks of a path, made if need be.
func (m *marks) at(p string) *marks {
	for rest := p; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		m = m.child(name)
	}
	return m
}

func (m *marks) child(name string) *marks {
	if m.below == nil {
		m.below = map[string]*marks{}
	}
	next := m.below[name]
	if next == nil {
		next = &marks{}
		m.below[strings.Clone(name)] = next
	}
	return next
}

// mark keeps in mind that an entry was unpacked at a path where nothing is.
func (u *unpacker) mark(dir, name string) {
	if u.lowest() {
		u.marksAt(dir).child(name).unpacked = true
	}
}

func (u *unpacker) marksAt(p string) *marks {
	if u.marks == nil {
		u.marks = &marks{}
	}
	return u.marks.at(p)
}

// wasUnpacked tells whether an entry was unpacked at a path where nothing is.
func (u *unpacker) wasUnpacked(p string) bool {
	return u.marks != nil && u.marks.at(p).unpacked
}

// firstOpaque tells whether it is the first time that it is asked about the
// directory at p. containerd clears a path only once, even if what stands
// there is not the same directory any more.
func (u *unpacker) firstOpaque(p string) bool {
	m := u.marksAt(p)
	first := !m.opaque
	m.opaque = true
	return first
}

// clear removes from a directory, at any depth, what no entry has put there:
// directories that were only made for what is in them, with all of that.
func (u *unpacker) clear(at place) {
	for i := 0; i < len(at.node.children); {
		child := at.node.children[i]
		if _, implicit := u.implicit[child.Node]; implicit {
			u.removeMarked(at, child.Name) // puts another child in its place
			continue
		}
		if child.Node.IsDir() {
			u.clear(place{path: path.Join(at.path, child.Name), node: child.Node})
		}
		i++
	}
}

// removeMarked removes a name that is there, with all below it, and marks what
// entries have put there.
func (u *unpacker) removeMarked(at place, name string) {
	if u.lowest() {
		u.markBelow(u.marksAt(at.path).child(name), u.lookup(at.node, name))
	}
	u.remove(at.node, name)
}

func (u *unpacker) markBelow(m *marks, n *Node) {
	_, implicit := u.implicit[n]
	m.unpacked = !implicit
	for _, child := range n.children {
		u.markBelow(m.child(child.Name), child.Node)
	}
}
