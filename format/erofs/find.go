package erofs

import (
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"lighter/format/tree"
)

// Finder looks up paths in an image. It has a cache of 1 MiB. It is not safe for concurrent use.
type Finder struct {
	c     *checker
	found Inode
}

// Finder returns a new finder.
func (m *Image) Finder() *Finder {
	f := &Finder{c: &checker{pager: newPager(m), super: &m.super}}
	f.c.visit = func(_ string, in Inode) error {
		f.found = in
		return nil
	}
	return f
}

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
	if err == nil {
		err = f.c.show(path, nid, &h, e)
	}
	if err != nil {
		return Inode{}, f.failed(path, nid, err)
	}
	return f.found, nil
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
		err := f.block(&h, e, i, func(name []byte, _ uint64) bool {
			if s := string(name); s != "." && s != ".." {
				names = append(names, s)
			}
			return len(names) < limit
		})
		if err != nil {
			return names, f.failed(path, in.Nid, err)
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

// errStop ends the parsing of a block.
var errStop = errors.New("stop")

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
	blocks := int((int64(h.size) + BlockSize - 1) / BlockSize)
	after := sort.Search(blocks, func(i int) bool {
		first := ""
		err := f.block(&h, e, int64(i), func(got []byte, _ uint64) bool {
			first = string(got)
			return false
		})
		if err != nil && failed == nil {
			failed = err
		}
		return first > name
	})
	nid, found := uint64(0), false
	if failed == nil && after > 0 {
		failed = f.block(&h, e, int64(after-1), func(got []byte, child uint64) bool {
			if string(got) == name {
				nid, found = child, true
			}
			return string(got) < name
		})
	}
	if failed == nil && !found {
		failed = fs.ErrNotExist
	}
	return nid, failed
}

// block calls visit with the names in block i of a directory until it returns false.
func (f *Finder) block(h *header, e extent, i int64, visit func(name []byte, nid uint64) bool) error {
	from := e.block + i*BlockSize
	if i >= e.blocks {
		from = e.rest
	}
	b, err := f.c.bytes(from, min(int64(h.size)-i*BlockSize, BlockSize))
	if err != nil {
		return err
	}
	err = parseDirBlock(b, func(name []byte, nid uint64, _ uint8) error {
		if visit(name, nid) {
			return nil
		}
		return errStop
	})
	if err != nil && err != errStop {
		return bad("%w", err)
	}
	return nil
}
