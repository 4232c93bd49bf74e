package tree

import (
	"cmp"
	"slices"
)

// NewDir returns n as a directory with these children. It sets the type and the link count, and
// keeps and sorts the slice. The names must be distinct and valid. It is for trees that are not
// made from layers: those of trial mounts, and of tests.
func NewDir(n Node, children []Dirent) *Node {
	n.Mode = ModeDir | n.Mode&^ModeType
	n.Nlink = 2
	for _, c := range children {
		if c.Node.IsDir() {
			n.Nlink++
		}
	}
	slices.SortFunc(children, func(a, b Dirent) int { return cmp.Compare(a.Name, b.Name) })
	n.children = children
	return &n
}
