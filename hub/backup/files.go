package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// copyFile copies a file, and reports whether it did. An immutable file is not copied if the
// destination has a file of the same size that is not older. An older copy may be a damaged one of
// a file that was repaired since. Immutable files become hard links, if that is possible.
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

// copyRegistry copies the files of a registry, except unfinished uploads, and removes all others
// from the copy: tags, manifests and blobs that an earlier backup had and that were deleted since.
//
// Clients may push meanwhile. A push stores blobs first, then links to them, then the manifest,
// then the tag. So files are copied in the reverse order: what a tag needs exists when the tag is
// copied.
func copyRegistry(ctx context.Context, from, to string) error {
	const v2 = "docker/registry/v2"
	c := registryCopy{from: from, to: to, has: map[string]bool{}}
	repositories, err := c.repositories(ctx, v2+"/repositories")
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		for _, part := range []string{"_manifests/tags", "_manifests/revisions", "_layers"} {
			if err := c.tree(ctx, filepath.Join(repository, part)); err != nil {
				return err
			}
		}
	}
	if err := c.tree(ctx, v2+"/blobs"); err != nil {
		return err
	}
	return prune(to, c.has)
}

// registryCopy is a copy of the files of a registry. Paths are relative to its two directories.
type registryCopy struct {
	from, to string
	has      map[string]bool // paths of the files that were copied, or are there already
}

// repositories returns the paths of the repositories below a directory.
func (c *registryCopy) repositories(ctx context.Context, dir string) (all []string, err error) {
	err = c.walk(ctx, dir, func(path string, d fs.DirEntry) error {
		// No part of a repository's name begins with an underscore.
		if !d.IsDir() || !strings.HasPrefix(d.Name(), "_") {
			return nil
		}
		all = append(all, filepath.Dir(path))
		return fs.SkipDir
	})
	return slices.Compact(all), err
}

// tree copies the files below a directory. Files named "data" are the bytes of blobs, which never
// change.
func (c *registryCopy) tree(ctx context.Context, dir string) error {
	return c.walk(ctx, dir, func(path string, d fs.DirEntry) error {
		if d.IsDir() {
			return nil
		}
		_, err := copyFile(filepath.Join(c.from, path), filepath.Join(c.to, path), d.Name() == "data")
		if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
			return nil
		}
		c.has[path] = err == nil
		return err
	})
}

// walk calls fn with all files and directories below a directory that are not removed meanwhile.
func (c *registryCopy) walk(ctx context.Context, dir string, fn func(path string, d fs.DirEntry) error) error {
	return filepath.WalkDir(filepath.Join(c.from, dir), func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		return fn(strings.TrimPrefix(path, c.from+"/"), d)
	})
}

// prune removes the files of a directory whose paths in it are not among the keys.
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
