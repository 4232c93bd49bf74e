package stargz

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"lighter/format/tree"
)

// maxLinkRounds bounds how often the archive is searched for the targets of hard links to hard
// links.
const maxLinkRounds = 8

// order has the entries of a tar that come first.
type order struct {
	archive io.ReaderAt
	size    int64
	wanted  map[string]int64 // by path: offset of the path's last entry; -1: there is none
	noDirs  map[string]bool  // paths of symbolic links, and of wanted entries that are no directories
	moved   map[string]bool
	first   []item
}

// prioritize finds the entries of paths, with those that have to be before them: their directories
// and the targets of hard links. Paths that the tar does not have are ignored, and so are
// whiteouts. There are no such entries if the tar has another tree with them before the others.
func prioritize(ctx context.Context, archive io.ReaderAt, size int64, paths []string) (*order, error) {
	o := &order{archive: archive, size: size, wanted: map[string]int64{}, noDirs: map[string]bool{},
		moved: map[string]bool{}}
	if len(paths) == 0 {
		return o, nil
	}
	for _, p := range paths {
		o.want(cleanName(p))
	}
	for round := 0; ; round++ {
		before := len(o.wanted)
		if err := o.search(ctx); err != nil {
			return nil, err
		}
		if len(o.wanted) == before {
			break
		}
		if round == maxLinkRounds {
			return nil, errors.New("hard links to hard links are nested too deeply")
		}
	}
	if changes, err := o.changesTree(ctx); err != nil || changes {
		return o, err
	}
	for _, p := range paths {
		if err := o.move(cleanName(p)); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// want notes a path and its directories.
func (o *order) want(p string) {
	if strings.HasPrefix(path.Base(p), tree.WhiteoutPrefix) {
		return
	}
	for {
		if _, known := o.wanted[p]; !known {
			o.wanted[p] = -1
		}
		if p == "" {
			return
		}
		p = parentOf(p)
	}
}

// parentOf returns the path of the directory of a clean path; the root is "".
func parentOf(p string) string { return cleanName(path.Dir("/" + p)) }

// search notes the places of wanted entries, and that the targets of hard links are wanted, too.
func (o *order) search(ctx context.Context) error {
	return eachItem(ctx, o.archive, o.size, func(it item) error {
		name := cleanName(it.Name)
		_, wanted := o.wanted[name]
		if it.Typeflag == tar.TypeSymlink || wanted && it.Typeflag != tar.TypeDir {
			o.noDirs[name] = true
		}
		if !wanted {
			return nil
		}
		o.wanted[name] = it.begin
		if it.Typeflag == tar.TypeLink {
			o.want(cleanName(it.Linkname))
		}
		return nil
	})
}

// changesTree reports whether the tar may have another tree if the wanted entries come first. That
// is so if one of them replaces something else than a file, or is a directory that hands down an
// ACL, if a path leads through a symbolic link or a file, if a hard link comes before its target,
// and if a whiteout hides what is wanted. Usual layers have nothing of this.
func (o *order) changesTree(ctx context.Context) (changes bool, err error) {
	has := map[string]bool{} // wanted entries, and their directories
	for p, at := range o.wanted {
		for at >= 0 && !has[p] {
			has[p] = true
			p = parentOf(p)
		}
	}
	err = eachItem(ctx, o.archive, o.size, func(it item) error {
		name := cleanName(it.Name)
		at, wanted := o.wanted[name]
		dir, base := parentOf(name), path.Base(name)
		target, isLinked := o.wanted[cleanName(it.Linkname)]
		if wanted && at != it.begin { // it would be left out
			last, err := readItem(o.archive, o.size, at)
			if err != nil {
				return err
			}
			changes = changes || it.Typeflag != tar.TypeReg || last.Typeflag != tar.TypeReg
		}
		hidden, isWhiteout := strings.CutPrefix(base, tree.WhiteoutPrefix)
		_, inherits := it.PAXRecords[tree.XattrPrefix+tree.DefaultACL]
		changes = changes || inherits && wanted || it.Typeflag == tar.TypeDir && o.noDirs[name] ||
			it.Typeflag == tar.TypeLink && isLinked && (target > it.begin || strings.HasSuffix(it.Linkname, "/")) ||
			base == tree.OpaqueMarker && has[dir] ||
			isWhiteout && has[cleanName(path.Join(dir, hidden))]
		for name != "" && !changes {
			name = parentOf(name)
			changes = o.noDirs[name]
		}
		return nil
	})
	return changes, err
}

// move puts an entry behind those that come first, after its directory and its target.
func (o *order) move(p string) error {
	at, wanted := o.wanted[p]
	if !wanted || o.moved[p] {
		return nil
	}
	if p != "" {
		if err := o.move(parentOf(p)); err != nil {
			return err
		}
	}
	if at < 0 {
		return nil
	}
	o.moved[p] = true
	it, err := readItem(o.archive, o.size, at)
	if err != nil {
		return err
	}
	if it.Typeflag == tar.TypeLink {
		if err := o.move(cleanName(it.Linkname)); err != nil {
			return err
		}
	}
	o.first = append(o.first, it)
	return nil
}

// eachItem calls fn for each entry of a tar, and returns an error that names the entry.
func eachItem(ctx context.Context, archive io.ReaderAt, size int64, fn func(it item) error) error {
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		it, err := readItem(archive, size, at)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the tar at offset %d: %w", at, err)
		}
		if err := fn(it); err != nil {
			return fmt.Errorf("entry %q: %w", it.Name, err)
		}
		at = it.end
	}
}
