package tree

import (
	"maps"
	"slices"
	"strings"
)

// merge merges volumes as overlayfs does, the topmost first. It reuses their nodes.
func merge(b *budget, volumes []*volume) (*Tree, error) {
	roots := make([]*Node, len(volumes))
	m := merger{budget: b, opaque: map[*Node]struct{}{}, single: len(volumes) == 1}
	for i, v := range volumes {
		roots[i] = v.root
		maps.Copy(m.opaque, v.opaque)
	}
	// All roots are merged: overlayfs does not check whether a layer's root is opaque.
	if err := m.merge(roots); err != nil {
		return nil, err
	}
	roots[0].Mtime = Time{}
	return &Tree{Root: roots[0]}, nil
}

type merger struct {
	budget *budget
	opaque map[*Node]struct{}
	// single means that there is one layer. containerd shows it without overlayfs, so a whiteout is
	// a device node there.
	single bool
}

// layered is a name in one of the merged directories.
type layered struct {
	Dirent
	layer int
}

// merge turns the first of the directories into the merged view of all of them.
func (m *merger) merge(dirs []*Node) (err error) {
	if err := m.budget.step(); err != nil {
		return err
	}
	top := dirs[0]
	if len(dirs) == 1 {
		top.children, err = m.visible(top.children)
	} else {
		top.children, err = m.union(dirs)
	}
	top.Nlink = 2
	for _, child := range top.children {
		if child.Node.IsDir() {
			top.Nlink++
		}
	}
	return err
}

// visible returns the children, without whiteouts, of a directory that is in one layer only. It
// merges the directories below, too.
func (m *merger) visible(children []Dirent) ([]Dirent, error) {
	kept := children[:0]
	for _, child := range children {
		if !m.isWhiteout(child.Node) {
			kept = append(kept, child)
		}
		if child.Node.IsDir() {
			if err := m.merge([]*Node{child.Node}); err != nil {
				return nil, err
			}
		}
	}
	clear(children[len(kept):])
	return kept, nil
}

// union returns the merged children of directories that several layers have at one path.
func (m *merger) union(dirs []*Node) ([]Dirent, error) {
	total := 0
	for _, dir := range dirs {
		total += len(dir.children)
	}
	all := make([]layered, 0, total)
	for i, dir := range dirs {
		for _, child := range dir.children {
			all = append(all, layered{child, i})
		}
	}
	slices.SortFunc(all, func(a, b layered) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return a.layer - b.layer
	})
	merged := make([]Dirent, 0, total)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Name == all[0].Name {
			n++
		}
		node, err := m.pick(all[:n])
		if err != nil {
			return nil, err
		}
		if node != nil {
			merged = append(merged, Dirent{Name: all[0].Name, Node: node})
		}
		all = all[n:]
	}
	return merged, nil
}

// pick returns the visible node among the nodes of one name, or nil. same has the topmost layer's
// node first.
func (m *merger) pick(same []layered) (*Node, error) {
	top := same[0].Node
	if m.isWhiteout(top) {
		return nil, nil
	}
	if !top.IsDir() {
		return top, nil
	}
	dirs := []*Node{top}
	for _, next := range same[1:] {
		if _, opaque := m.opaque[dirs[len(dirs)-1]]; opaque || !next.Node.IsDir() {
			break
		}
		dirs = append(dirs, next.Node)
	}
	return top, m.merge(dirs)
}

func (m *merger) isWhiteout(n *Node) bool {
	return !m.single && n.Mode&ModeType == ModeChar && n.Rdev == 0
}
