package tree

import (
	"path"
	"strings"
)

const (
	maxLinks       = 255 // that containerd follows to resolve one path
	maxKernelLinks = 40  // that the kernel follows in one look-up
)

// A place is a path within a volume in which no link is left to follow.
type place struct {
	path string // clean, without a slash at the start; the root is ""
	node *Node  // what is there, or nil
}

// resolve follows a path as containerd does (continuity's fs.RootPath): every
// link on it, the last one included, is followed as if the volume's root were
// the root of everything, and what does not exist is taken as it is written.
func (v *volume) resolve(p string) (place, error) {
	if at, plain, err := v.walk(p); plain || err != nil {
		return at, err
	}
	links := 0
	for {
		before := links
		next, err := v.followLinks(p, &links)
		if err != nil {
			return place{}, err
		}
		if p = next; links > before {
			continue
		}
		if p = path.Join("/", next); p == next {
			break
		}
	}
	// Nothing to follow is left now.
	at, _, err := v.walk(p)
	at.path = p[1:]
	return at, err
}

// walk resolves a path that has neither links nor ".." in it, as nearly all
// have not. Where it has, plain is false.
func (v *volume) walk(p string) (at place, plain bool, err error) {
	at.path = strings.Trim(p, "/")
	dir := v.root
	for rest := at.path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if name == "" || name == "." || name == ".." {
			return place{}, false, nil
		}
		if dir == nil {
			continue
		}
		if err := v.budget.step(); err != nil {
			return place{}, false, err
		}
		child, err := v.step(dir, name)
		if err != nil && err != errNotExist {
			return place{}, false, err
		}
		if child != nil && child.Mode&ModeType == ModeSymlink {
			return place{}, false, nil
		}
		dir = child
	}
	if len(at.path) > maxPath {
		return place{}, false, errNameTooLong
	}
	at.node = dir
	return at, true, nil
}

// step looks one name up, with the kernel's errors.
func (v *volume) step(dir *Node, name string) (*Node, error) {
	if !dir.IsDir() {
		return nil, errNotDir
	}
	if len(name) > maxName {
		return nil, errNameTooLong
	}
	if n := v.lookup(dir, name); n != nil {
		return n, nil
	}
	return nil, errNotExist
}

// followLinks goes along a path once and replaces each link that it meets by
// its target, but does not look into the target: where that has links of its
// own they are met at the next pass, or, if ".." comes after them, never. That
// is not what a kernel would do, but it is what containerd does.
func (v *volume) followLinks(p string, links *int) (string, error) {
	w := linkWalk{volume: v}
	if strings.HasPrefix(p, "/") {
		w.reached, w.clean, w.node = []byte("/"), true, v.root
	}
	for rest := p; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if name == "" {
			continue
		}
		if *links > maxLinks {
			return "", errLinkLoop
		}
		link, err := w.next(name)
		if err != nil {
			return "", err
		}
		if link {
			*links++
		}
	}
	return string(w.reached), nil
}

// A linkWalk goes along a path a name at a time.
type linkWalk struct {
	volume  *volume
	reached []byte // the path so far; clean and absolute, or as a link has it
	clean   bool
	node    *Node // what lstat finds at reached if that is clean, or nil
}

// next goes one name further and tells whether there was a link. Nearly all
// names only lead from one directory to the next; going from the root again for
// each of them would take long for the paths that links can make.
func (w *linkWalk) next(name string) (link bool, err error) {
	before := len(w.reached)
	var n *Node
	if w.clean && name != "." && name != ".." {
		if before > 1 {
			w.reached = append(w.reached, '/')
		}
		w.reached = append(w.reached, name...)
		n, err = w.child(name)
	} else {
		clean := path.Join("/", string(w.reached), name)
		n, err = w.volume.lstat(clean)
		if n == nil || n.Mode&ModeType != ModeSymlink {
			w.reached, w.clean = []byte(clean), true
		}
	}
	if err != nil && err != errNotExist {
		return false, err
	}
	if n == nil || n.Mode&ModeType != ModeSymlink {
		w.node = n
		return false, nil
	}
	target := n.Link
	if before > 0 && target[0] != '/' {
		target = path.Join(string(w.reached[:before]), target)
	}
	w.reached, w.clean, w.node = []byte(target), false, nil
	return true, nil
}

// child is lstat of reached, which is now the name in node.
func (w *linkWalk) child(name string) (*Node, error) {
	if len(w.reached) > maxPath {
		return nil, errNameTooLong
	}
	if err := w.volume.budget.step(); err != nil {
		return nil, err
	}
	if w.node == nil {
		return nil, errNotExist
	}
	return w.volume.step(w.node, name)
}

// lstat looks a clean absolute path up as the kernel does, which follows links
// on the way but not the last. A link that leads out of the volume leads to the
// files of the machine on which containerd runs; nothing is there for us.
func (v *volume) lstat(p string) (*Node, error) {
	if len(p) > maxPath {
		return nil, errNameTooLong
	}
	above := []*Node{v.root}
	links := 0
	for rest := p; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if err := v.budget.step(); err != nil {
			return nil, err
		}
		dir := above[len(above)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			if !dir.IsDir() {
				return nil, errNotDir
			}
			if above = above[:len(above)-1]; len(above) == 0 {
				return nil, errNotExist
			}
			continue
		}
		n, err := v.step(dir, name)
		if err != nil {
			return nil, err
		}
		if n.Mode&ModeType != ModeSymlink || rest == "" {
			above = append(above, n)
			continue
		}
		if links++; links > maxKernelLinks {
			return nil, errLinkLoop
		}
		if n.Link[0] == '/' {
			return nil, errNotExist
		}
		rest = n.Link + "/" + rest
	}
	return above[len(above)-1], nil
}
