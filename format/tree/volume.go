package tree

import (
	"errors"
	"slices"
	"strings"
)

// Errors of the simulated file system.
var (
	errNotExist    = errors.New("no such file or directory")
	errExist       = errors.New("file exists")
	errNotDir      = errors.New("not a directory")
	errNameTooLong = errors.New("file name too long")
	errLinkLoop    = errors.New("too many levels of symbolic links")
	errInvalid     = errors.New("invalid argument")
)

const (
	// maxName bounds a file name in bytes.
	maxName = 255
	// maxPath bounds a path from the root in bytes. The kernel's 4,095 include the path of the
	// root, which depends on containerd's configuration.
	maxPath = 4000
	// smallDir is the maximum number of names in a directory without an index.
	smallDir = 16
)

// volume is the simulated directory into which containerd unpacks one layer, for use as an
// overlayfs layer.
type volume struct {
	root   *Node
	opaque map[*Node]struct{} // directories that hide what lower layers have at their path
	budget *budget

	sealed  bool                       // names are sorted and do not change any more
	indexes map[*Node]map[string]int32 // of directories with more than smallDir names: position by name
}

func newVolume(b *budget) *volume {
	return &volume{
		root:    &Node{Mode: ModeDir | 0o755},
		opaque:  map[*Node]struct{}{},
		budget:  b,
		indexes: map[*Node]map[string]int32{},
	}
}

// find returns the position of a name in a directory, or -1.
func (v *volume) find(dir *Node, name string) int {
	switch {
	case len(dir.children) <= smallDir:
		for i := range dir.children {
			if dir.children[i].Name == name {
				return i
			}
		}
		return -1
	case v.sealed:
		i, found := slices.BinarySearchFunc(dir.children, name, func(d Dirent, name string) int {
			return strings.Compare(d.Name, name)
		})
		if !found {
			return -1
		}
		return i
	}
	if i, found := v.indexes[dir][name]; found {
		return int(i)
	}
	return -1
}

// lookup returns the node of a name in a directory, or nil.
func (v *volume) lookup(dir *Node, name string) *Node {
	if i := v.find(dir, name); i >= 0 {
		return dir.children[i].Node
	}
	return nil
}

// insert adds a new name to a directory.
func (v *volume) insert(dir *Node, name string, n *Node) error {
	if len(name) > maxName {
		return errNameTooLong
	}
	if err := v.budget.keep(int64(len(name))); err != nil {
		return err
	}
	// A clone: the entry's whole path would stay in memory otherwise.
	name = strings.Clone(name)
	dir.children = append(dir.children, Dirent{Name: name, Node: n})
	if !n.IsDir() {
		n.Nlink++
	}
	switch count := len(dir.children); {
	case count == smallDir+1:
		index := make(map[string]int32, 2*smallDir)
		for i, child := range dir.children {
			index[child.Name] = int32(i)
		}
		v.indexes[dir] = index
	case count > smallDir:
		v.indexes[dir][name] = int32(count - 1)
	}
	return nil
}

// remove removes an existing name from a directory, with all names below it.
func (v *volume) remove(dir *Node, name string) {
	i := v.find(dir, name)
	n := dir.children[i].Node
	last := len(dir.children) - 1
	dir.children[i] = dir.children[last]
	dir.children[last] = Dirent{}
	dir.children = dir.children[:last]
	switch {
	case last == smallDir:
		delete(v.indexes, dir)
	case last > smallDir:
		index := v.indexes[dir]
		delete(index, name)
		if i < last {
			index[dir.children[i].Name] = int32(i)
		}
	}
	v.drop(n)
}

func (v *volume) drop(n *Node) {
	if !n.IsDir() {
		n.Nlink--
		return
	}
	delete(v.indexes, n)
	for _, child := range n.children {
		v.drop(child.Node)
	}
}

// seal ends the unpacking. It sorts every directory and frees the indexes.
func (v *volume) seal() {
	v.indexes = nil
	v.sealed = true
	sortNames(v.root)
}

func sortNames(dir *Node) {
	if cap(dir.children) > len(dir.children)+len(dir.children)/8 {
		dir.children = append(make([]Dirent, 0, len(dir.children)), dir.children...)
	}
	slices.SortFunc(dir.children, func(a, b Dirent) int { return strings.Compare(a.Name, b.Name) })
	for _, child := range dir.children {
		if child.Node.IsDir() {
			sortNames(child.Node)
		}
	}
}
