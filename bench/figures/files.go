package figures

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	smallFile  = 32 << 10 // bytes that a small file has at most
	smallFiles = 5000     // small files that are read
)

// walk calls stat on every name below dir like `find -ls`: relative to the open directory, without
// following symlinks. It calls fn with the path of each name, unless fn is nil.
func walk(dir string, fn func(path string, stat *unix.Stat_t)) (names int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	entries, err := d.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	for _, name := range entries {
		var stat unix.Stat_t
		if err := unix.Fstatat(int(d.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return names, fmt.Errorf("stat %s/%s: %w", dir, name, err)
		}
		names++
		path := dir + "/" + name
		if fn != nil {
			fn(path, &stat)
		}
		if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			below, err := walk(path, fn)
			names += below
			if err != nil {
				return names, err
			}
		}
	}
	return names, nil
}

// chosen lists the files to read, relative to the image's root.
type chosen struct {
	largest     string
	largestSize int64
	small       []string
}

// choose selects the largest file, and small files evenly from the whole tree.
func choose(root string) (chosen, error) {
	var c chosen
	var small []string
	_, err := walk(root, func(path string, stat *unix.Stat_t) {
		if stat.Mode&unix.S_IFMT != unix.S_IFREG {
			return
		}
		path = path[len(root)+1:]
		if stat.Size > c.largestSize {
			c.largest, c.largestSize = path, stat.Size
		}
		if stat.Size > 0 && stat.Size <= smallFile {
			small = append(small, path)
		}
	})
	if err != nil {
		return c, err
	}
	if len(small) < smallFiles {
		return c, fmt.Errorf("choose small files: the image has %d, want %d", len(small), smallFiles)
	}
	for i := range smallFiles {
		c.small = append(c.small, small[i*len(small)/smallFiles])
	}
	return c, nil
}

// reader reads files one after the other, with one buffer.
type reader struct{ buf [128 << 10]byte }

// read reads whole files and returns the number of bytes.
func (r *reader) read(root string, paths ...string) (int64, error) {
	var sum int64
	for _, path := range paths {
		n, err := r.readOne(filepath.Join(root, path))
		sum += n
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

func (r *reader) readOne(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var sum int64
	for {
		n, err := f.Read(r.buf[:])
		sum += int64(n)
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// readAll reads every regular file below root.
func (r *reader) readAll(root string) (int64, error) {
	var paths []string
	_, err := walk(root, func(path string, stat *unix.Stat_t) {
		if stat.Mode&unix.S_IFMT == unix.S_IFREG {
			paths = append(paths, path[len(root)+1:])
		}
	})
	if err != nil {
		return 0, err
	}
	return r.read(root, paths...)
}
