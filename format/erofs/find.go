package erofs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sort"
	"strings"

	"lighter/format/tree"
)

// Finder looks up paths in an image. It has a cache of 1 MiB. It is not safe for concurrent use.
type Finder struct{ c *checker }

// Finder returns a new finder.
func (m *Image) Finder() *Finder { return &Finder{&checker{pager: newPager(m), super: &m.super}} }

// Find returns the inode of an absolute path without "." and "..". It follows no symlinks: a path
// through one is not found. It checks only what it reads; the image may be invalid elsewhere.
// Errors wrap fs.ErrNotExist or ErrInvalid, or are the reader's.
func (f *Finder) Find(path string) (Inode, error) {
	nid := uint64(rootNid)
	for _, name := range strings.Split(path, "/") {
		if name == "" {
			continue
		}
		child, err := f.child(nid, name)
		if err != nil {
			return Inode{}, f.failed(path, nid, err)
		}
		nid = child
	}
	h, e, err := f.c.header(nid)
	if err != nil {
		return Inode{}, f.failed(path, nid, err)
	}
	in, err := f.c.read(nid, &h, e)
	if err != nil {
		return Inode{}, f.failed(path, nid, err)
	}
	in.Inline = slices.Clone(in.Inline)
	return in, nil
}

// Names returns the first names in a directory, sorted, at most limit. It returns none if path is
// not a directory. Errors are those of Find.
func (f *Finder) Names(path string, limit int) (names []string, err error) {
	in, err := f.Find(path)
	if err != nil {
		return nil, err
	}
	h, e, err := f.c.header(in.Nid)
	if err != nil || in.Mode&tree.ModeType != tree.ModeDir {
		return nil, err
	}
	for i := int64(0); i*BlockSize < int64(h.size) && len(names) < limit; i++ {
		for d, err := range f.entries(&h, e, i) {
			if err != nil {
				return names, f.failed(path, in.Nid, err)
			}
			if name := string(d.name); name != "." && name != ".." && len(names) < limit {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

func (f *Finder) failed(path string, nid uint64, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%q: %w", path, err)
	}
	return f.c.at(path, nid, err)
}

// child returns the nid of a name in a directory. It searches for the last block whose first name
// is not after the name.
func (f *Finder) child(dir uint64, name string) (uint64, error) {
	h, e, err := f.c.header(dir)
	if err != nil {
		return 0, err
	}
	if uint32(h.mode)&tree.ModeType != tree.ModeDir || name == "." || name == ".." {
		return 0, fs.ErrNotExist
	}
	var failed error
	after := sort.Search(int(blocksOf(int64(h.size))), func(i int) bool {
		for first, err := range f.entries(&h, e, int64(i)) {
			if err != nil && failed == nil {
				failed = err
			}
			return string(first.name) > name
		}
		return false
	})
	if failed != nil || after == 0 {
		return 0, cmp.Or(failed, fs.ErrNotExist)
	}
	for d, err := range f.entries(&h, e, int64(after-1)) {
		if err != nil || string(d.name) == name {
			return d.nid, err
		}
	}
	return 0, fs.ErrNotExist
}

// entries returns the entries of block i of a directory.
func (f *Finder) entries(h *header, e extent, i int64) iter.Seq2[dirEntry, error] {
	b, err := f.c.dirBlock(h, e, i)
	if err != nil {
		return func(yield func(dirEntry, error) bool) { yield(dirEntry{}, err) }
	}
	return dirEntries(b)
}
