package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// copyFile copies a file, unless the file never changes and the destination has it: a file of the
// same size that is not older. An older one may be damaged, and the file repaired since. copyFile
// reports whether it has copied. Files that never change become hard links, if that is possible.
func copyFile(from, to string, immutable bool) (copied bool, err error) {
	source, err := os.Stat(from)
	if err != nil {
		return false, err
	}
	if has, err := os.Stat(to); immutable && err == nil && has.Size() == source.Size() &&
		!has.ModTime().Before(source.ModTime()) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return false, err
	}
	temporary := to + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = syscall.EXDEV
	if immutable {
		err = os.Link(from, temporary)
	}
	if err != nil {
		err = copyBytes(from, temporary)
	}
	if err == nil {
		err = os.Rename(temporary, to)
	}
	return err == nil, err
}

func copyBytes(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Sync(), w.Close())
}

// copyTree copies the files of a registry below a directory, except unfinished uploads. The bytes
// of blobs never change.
func copyTree(ctx context.Context, from, to string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
			return nil
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "_uploads":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		_, err = copyFile(path, filepath.Join(to, strings.TrimPrefix(path, from)), d.Name() == "data")
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return err
}

// prune removes the objects that are not among the keys.
func prune(dir string, keys map[string]bool) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || keys[strings.TrimPrefix(path, dir+"/")] {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		return os.Remove(path)
	})
}
