package tree

import (
	"cmp"
	"slices"
)

// NewDir returns n as a directory that holds children, which it keeps and
// sorts. It is for tests, which need trees without layers. It sets the type and the link count (2 plus the subdirectories); the
// names must differ from each other and be such as Dirent demands.
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
