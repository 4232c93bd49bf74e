package guess

import (
	"context"
	"path"
	"strings"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/index"
	"lighter/format/tree"
)

// span is a range of a file, in bytes.
type span struct{ from, to int64 }

// regular is a regular file with its path, in which no part is a symbolic link.
type regular struct {
	path string
	in   erofs.Inode
}

// address returns the device's offset of the file's first byte; -1: it is not on the device.
func (r *regular) address() int64 {
	if !r.in.Device {
		return -1
	}
	return int64(r.in.Address)
}

// files reads a tree's files. A missing or unreadable file is empty, since a guess can do without
// it.
type files struct {
	*Image
	ctx    context.Context // of the one guess that the value is made for
	finder *erofs.Finder

	dirs   map[string]string // by a directory's path: its path without links; empty: missing
	finds  int
	reads  int
	plain  map[chunk.ID][]byte // chunks kept in memory
	oldest []chunk.ID          // the keys of plain, the oldest first
	kept   int                 // bytes of plain
}

func newFiles(ctx context.Context, i *Image) *files {
	return &files{Image: i, ctx: ctx, finder: i.Metadata.Finder(), dirs: map[string]string{},
		plain: map[chunk.ID][]byte{}}
}

// resolve follows a path from the root as the kernel does. It returns the inode, and its path
// without symbolic links.
func (f *files) resolve(name string) (string, erofs.Inode, bool) {
	if !path.IsAbs(name) {
		name = "/" + name
	}
	name = path.Clean(name) // the kernel resolves ".." after a link differently; such names do not occur
	dir, base := path.Split(name)
	if base == "" {
		in, ok := f.find("/")
		return "/", in, ok
	}
	at, known := f.dirs[dir]
	if !known {
		at = f.directory(dir)
		if len(f.dirs) < maxDirs {
			f.dirs[dir] = at
		}
	}
	if at == "" {
		return "", erofs.Inode{}, false
	}
	return f.child(at, base)
}

// child resolves a name in a directory, whose path has no symbolic links.
func (f *files) child(dir, name string) (string, erofs.Inode, bool) {
	at := dir + "/" + name
	if dir == "/" {
		at = dir + name
	}
	in, ok := f.find(at)
	if ok && in.Mode&tree.ModeType == tree.ModeSymlink {
		at = f.follow(at)
		in, ok = f.find(at)
		ok = ok && at != ""
	}
	return at, in, ok
}

// directory returns the path without symbolic links of a directory, which ends with a slash; "" if
// there is none.
func (f *files) directory(name string) string {
	up, base := path.Split(name[:len(name)-1])
	in, known := f.dirs[up]
	if !known {
		return f.follow(name)
	}
	if in == "" {
		return ""
	}
	at, _, ok := f.child(in, base)
	if !ok {
		return ""
	}
	return at
}

// follow resolves all symbolic links in a path. It returns "" if the path leads nowhere.
func (f *files) follow(name string) string {
	left := strings.Split(name, "/")
	at := "/"
	for links := 0; len(left) > 0; {
		part := left[0]
		left = left[1:]
		next := path.Join(at, part)
		if part == "" || part == "." || part == ".." {
			at = next
			continue
		}
		in, ok := f.find(next)
		if !ok {
			return ""
		}
		if in.Mode&tree.ModeType != tree.ModeSymlink {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return ""
		}
		if path.IsAbs(in.Link) {
			at = "/"
		}
		left = append(strings.Split(in.Link, "/"), left...)
	}
	return at
}

func (f *files) find(name string) (erofs.Inode, bool) {
	if f.finds++; f.finds > maxFinds || f.ctx.Err() != nil || name == "" || len(name) > 4096 {
		return erofs.Inode{}, false
	}
	in, err := f.finder.Find(name)
	return in, err == nil
}

// open finds a regular file.
func (f *files) open(name string) (regular, bool) {
	at, in, ok := f.resolve(name)
	return regular{at, in}, ok && in.Mode&tree.ModeType == tree.ModeRegular
}

// program finds an executable file.
func (f *files) program(name string) (regular, bool) {
	r, ok := f.open(name)
	return r, ok && r.in.Mode&0o111 != 0
}

// names returns the names in a directory, at most limit.
func (f *files) names(dir string, limit int) []string {
	at, _, ok := f.resolve(dir)
	if !ok {
		return nil
	}
	names, _ := f.finder.Names(at, limit)
	return names
}

// bytes returns up to n bytes of a file: fewer at its end, and none if a chunk cannot be read.
func (f *files) bytes(r *regular, offset, n int64) []byte {
	if offset < 0 || n <= 0 || offset >= r.in.Size {
		return nil
	}
	n = min(n, r.in.Size-offset)
	if !r.in.Device {
		return r.in.Inline[min(offset, int64(len(r.in.Inline))):min(offset+n, int64(len(r.in.Inline)))]
	}
	from := int64(r.in.Address) + offset
	out := make([]byte, n)
	whole := true
	err := f.Extents.Range(from, from+n, func(i int64, x index.Extent) bool {
		plain := f.chunk(i, chunk.Ref{ID: x.ID, Length: x.Length})
		if whole = len(plain) == int(x.Length); whole {
			copy(out[max(x.Offset-from, 0):], plain[max(from-x.Offset, 0):])
		}
		return whole
	})
	if err != nil || !whole {
		return nil
	}
	return out
}

func (f *files) chunk(extent int64, ref chunk.Ref) []byte {
	if plain, kept := f.plain[ref.ID]; kept {
		return plain
	}
	if f.reads++; f.reads > maxChunks || f.ctx.Err() != nil {
		return nil
	}
	plain, err := f.Chunk(f.ctx, extent, ref)
	if err != nil {
		return nil
	}
	f.plain[ref.ID] = plain
	f.oldest = append(f.oldest, ref.ID)
	for f.kept += len(plain); f.kept > maxKept && len(f.oldest) > 1; f.oldest = f.oldest[1:] {
		f.kept -= len(f.plain[f.oldest[0]])
		delete(f.plain, f.oldest[0])
	}
	return plain
}
