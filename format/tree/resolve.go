package tree

import (
	"path"
	"strings"
)

const (
	maxLinks       = 255 // symlinks that containerd follows in a path
	maxKernelLinks = 40  // symlinks that the kernel follows in a lookup
)

// place is a path within a volume. No element of the path is a symlink.
type place struct {
	path string // clean, without a leading slash; the root is ""
	node *Node  // at the path, or nil
}

// resolve resolves a path as containerd does (fs.RootPath of continuity). All symlinks are
// followed, including the last element, with the volume as root. Elements that do not exist stay as
// they are.
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
	// No symlink is left.
	at, _, err := v.walk(p)
	at.path = p[1:]
	return at, err
}

// walk resolves a plain path, as most paths are: without symlinks, and without the elements "", "."
// and "..". It reports whether the path is plain.
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

// step looks up a name, with the kernel's errors.
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

// followLinks replaces the symlinks of a path by their targets, in one pass. Symlinks within a
// target are replaced in the next pass, or never if ".." follows them. containerd does the same;
// the kernel would resolve such a path differently.
func (v *volume) followLinks(p string, links *int) (string, error) {
	reached := ""
	if strings.HasPrefix(p, "/") {
		reached = "/"
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == "" {
			continue
		}
		if *links > maxLinks {
			return "", errLinkLoop
		}
		next := path.Join("/", reached, name)
		n, err := v.lstat(next)
		if err != nil && err != errNotExist {
			return "", err
		}
		switch {
		case n == nil || n.Mode&ModeType != ModeSymlink:
			reached = next
			continue
		case reached == "" || n.Link[0] == '/':
			reached = n.Link
		default:
			reached = path.Join(reached, n.Link)
		}
		*links++
	}
	return reached, nil
}

// lstat looks up a clean absolute path as the kernel does: it follows symlinks, except the last
// element. A symlink out of the volume leads to files of containerd's machine, so here it leads to
// nothing.
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
