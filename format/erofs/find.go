package erofs

import (
	"cmp"
	"errors"
	"io/fs"
	"iter"
	"slices"
	"sort"
	"strings"

	"lighter/format/tree"
)

// maxDirs bounds the directories whose places a Finder remembers, by the bytes of their paths.
const maxDirs = 1 << 20

// Finder looks up paths in an image. It has a cache of 1 MiB, and remembers where directories are.
// It is not safe for concurrent use.
type Finder struct {
	c    *checker
	dirs map[string]uint64 // nids of directories by path; 0: there is none
	kept int               // bytes of the paths in dirs
}

// Finder returns a new finder.
func (m *Image) Finder() *Finder {
	return &Finder{c: &checker{pager: newPager(m), super: &m.super}, dirs: map[string]uint64{}}
}

// Find returns the inode of an absolute path without "." and "..". It follows no symlinks: a path
// through one is not found. It checks only what it reads; the image may be invalid elsewhere.
// Errors wrap fs.ErrNotExist or ErrInvalid, or are the reader's.
func (f *Finder) Find(path string) (Inode, error) {
	last := strings.LastIndexByte(path, '/') + 1
	nid, err := f.dir(path[:last])
	if err == nil {
		nid, err = f.walk(nid, path[last:])
	}
	if err != nil {
		return Inode{}, f.failed(path, nid, err)
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

// dir returns the nid of a directory, and remembers it. Its errors are those of walk.
func (f *Finder) dir(path string) (uint64, error) {
	if nid, known := f.dirs[path]; known {
		if nid == 0 {
			return 0, fs.ErrNotExist
		}
		return nid, nil
	}
	nid, err := f.walk(rootNid, path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nid, err
	}
	if f.kept += len(path); f.kept > maxDirs {
		clear(f.dirs)
		f.kept = len(path)
	}
	if f.dirs[path] = nid; err != nil {
		f.dirs[path] = 0
	}
	return nid, err
}

// walk returns the nid of a path that begins in a directory. With an error, the nid is that of the
// directory at which the walk ended.
func (f *Finder) walk(nid uint64, path string) (uint64, error) {
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		child, err := f.child(nid, name)
		if err != nil {
			return nid, err
		}
		nid = child
	}
	return nid, nil
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
		return &fs.PathError{Op: "find", Path: path, Err: fs.ErrNotExist}
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
