package tree

import (
	"path"
	"strings"
)

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
	for done, rest := 0, at.path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		done += len(name) + 1
		child := u.lookup(dir, name)
		if child == nil {
			var err error
			if child, err = u.makeParent(dir, at.path[:done-1]); err != nil {
				return nil, err
			}
		}
		dir = child
	}
	return dir, nil
}

// makeParent creates a directory that has no entry.
func (u *unpacker) makeParent(dir *Node, p string) (*Node, error) {
	if err := u.budget.entry(); err != nil {
		return nil, err
	}
	n := &Node{Mode: ModeDir}
	n.inherit(dir)
	n.chmod(0o755)
	if err := u.insert(dir, path.Base(p), n); err != nil {
		return nil, err
	}
	if u.lowest() && !u.wasUnpacked(p) {
		u.implicit[n] = struct{}{}
	}
	for _, v := range u.lower {
		// containerd puts a slash in front. Without it, a symlink as the first element would be
		// resolved differently.
		like, err := v.resolve("/" + p)
		if err != nil {
			return nil, err
		}
		if like.node == nil {
			continue
		}
		if like.node.IsDir() { // otherwise the directory was replaced, and there is nothing to copy
			if err := n.copyAttributes(like.node); err != nil {
				return nil, err
			}
		}
		break
	}
	return n, u.budget.keepXattrs(n)
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
