package tree

import "strings"

// parent returns the directory at a place and creates missing directories. They get the attributes
// of the directory at the same path in the next lower layer that has one.
func (u *unpacker) parent(at place) (*Node, error) {
	if at.node != nil {
		if !at.node.IsDir() {
			return nil, errNotDir
		}
		return at.node, nil
	}
	dir := u.root
	searches := newSearches(u.lower)
	for done, rest := 0, at.path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		done += len(name) + 1
		for i := range searches {
			if err := searches[i].advance(name); err != nil {
				return nil, err
			}
		}
		child := u.lookup(dir, name)
		if child == nil {
			var err error
			if child, err = u.makeParent(dir, at.path[:done-1], searches); err != nil {
				return nil, err
			}
		}
		dir = child
	}
	return dir, nil
}

// makeParent creates a directory that has no entry.
func (u *unpacker) makeParent(dir *Node, path string, searches []search) (*Node, error) {
	if err := u.budget.entry(); err != nil {
		return nil, err
	}
	n := &Node{Mode: ModeDir}
	n.inherit(dir)
	n.chmod(0o755)
	if err := u.budget.keepXattrs(n, 0); err != nil {
		return nil, err
	}
	name := path[strings.LastIndexByte(path, '/')+1:]
	if err := u.insert(dir, name, n); err != nil {
		return nil, err
	}
	if u.lowest() && !u.wasUnpacked(path) {
		u.implicit[n] = struct{}{}
	}
	for i := range searches {
		like, err := searches[i].result(path)
		if err == errNotExist {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !like.IsDir() {
			break // replaced by another file, so there are no attributes to copy
		}
		before := n.xattrsMemory()
		if err := n.copyAttributes(like); err != nil {
			return nil, err
		}
		return n, u.budget.keepXattrs(n, before)
	}
	return n, nil
}

// copyAttributes sets the attributes of a new directory to those of another.
func (n *Node) copyAttributes(like *Node) error {
	n.UID, n.GID = like.UID, like.GID
	n.chmod(like.Mode)
	n.Mtime = like.Mtime
	for _, x := range like.Xattrs {
		if x.Name == capability && len(x.Value) == 0 {
			return errInvalid // the kernel lists it, but cannot read it
		}
		if err := n.setXattr(x.Name, x.Value); err != nil {
			return err
		}
	}
	return nil
}

// search looks up one path in a lower layer, a name at a time.
type search struct {
	volume *volume
	node   *Node // at the path so far, or nil
	linked bool  // the path has a symlink and must be resolved as a whole
	err    error // why the path cannot exist
}

func newSearches(volumes []*volume) []search {
	searches := make([]search, len(volumes))
	for i, v := range volumes {
		searches[i] = search{volume: v, node: v.root}
	}
	return searches
}

// advance looks up the next name. It returns only errors of the budget; result returns the others.
func (s *search) advance(name string) error {
	if err := s.volume.budget.step(); err != nil {
		return err
	}
	if s.linked || s.node == nil {
		return nil
	}
	s.node, s.err = s.volume.step(s.node, name)
	s.linked = s.node != nil && s.node.Mode&ModeType == ModeSymlink
	return nil
}

// result returns the node at the path.
func (s *search) result(path string) (*Node, error) {
	if !s.linked {
		return s.node, s.err
	}
	// containerd puts a slash in front. Without it, a symlink as the first element would be
	// resolved differently.
	at, err := s.volume.resolve("/" + path)
	if err == nil && at.node == nil {
		err = errNotExist
	}
	return at.node, err
}
