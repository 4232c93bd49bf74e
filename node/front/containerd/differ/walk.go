package differ

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	changes "github.com/containerd/continuity/fs"
	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// A walk finds what the top directory of an overlay changes in base, the merged view of the
// directories below it. It reports the changes that containerd's differ (continuity's fs.Changes)
// reports for base and the whole overlay, in the same order, with one exception: files with several
// names that are not in the top directory. They have no entry in a layer.
//
// continuity's fs.DiffDirChanges is for the same purpose, but reports other changes: opaque
// directories instead of deletions, files with unchanged contents, and links wrongly, because it
// follows them.
type walk struct {
	base string
	top  topDir
}

// report calls fn for each change.
func (w walk) report(ctx context.Context, fn changes.ChangeFunc) error {
	return w.directory(ctx, place{path: "/", inBase: true}, fn)
}

// A place is a directory of top.
type place struct {
	path   string
	inBase bool // base has a directory there, too
	hides  bool // that directory is not merged with this one, whose entries replace all of its entries
}

// directory reports what changed in a directory of top.
func (w walk) directory(ctx context.Context, in place, fn changes.ChangeFunc) error {
	if !in.hides {
		var err error
		if in.hides, err = w.top.isOpaque(filepath.Join(w.top.path, in.path)); err != nil {
			return err
		}
	}
	names, err := w.names(in)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.entry(ctx, in, name, fn); err != nil {
			return err
		}
	}
	return nil
}

// names returns the sorted names that may have changed in a directory: those in the top directory,
// and, if that hides the directory in base, also those in base.
func (w walk) names(in place) ([]string, error) {
	names, err := readNames(filepath.Join(w.top.path, in.path))
	if err != nil || !in.inBase || !in.hides {
		return names, err
	}
	hidden, err := readNames(filepath.Join(w.base, in.path))
	names = append(names, hidden...)
	slices.Sort(names)
	return slices.Compact(names), err
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, errors.Join(err, f.Close())
}

// entry reports what changed at a name in a directory, and below it. Directories below one that
// hides its directory in base hide theirs, too, and have no mark that says so.
func (w walk) entry(ctx context.Context, in place, name string, fn changes.ChangeFunc) error {
	path := filepath.Join(in.path, name)
	var before fs.FileInfo // nil: there is no such file
	if in.inBase {
		var err error
		if before, err = lstat(filepath.Join(w.base, path)); err != nil {
			return err
		}
	}
	after, err := lstat(filepath.Join(w.top.path, path))
	if err != nil {
		return err
	}
	if after != nil && isWhiteout(after) {
		after = nil
	}
	switch {
	case after == nil && before == nil:
		return nil
	case after == nil:
		return fn(changes.ChangeKindDelete, path, nil, nil)
	case before == nil:
		err = fn(changes.ChangeKindAdd, path, after, nil)
	default:
		err = w.modified(ctx, path, before, after, fn)
	}
	if err != nil || !after.IsDir() {
		return err
	}
	return w.directory(ctx, place{path: path, inBase: before != nil && before.IsDir(), hides: in.hides}, fn)
}

// modified reports a file that is in base, too. An unchanged file is reported if it has several
// names, because another of them may be new.
func (w walk) modified(
	ctx context.Context, path string, before, after fs.FileInfo, fn changes.ChangeFunc,
) error {
	same, err := w.same(ctx, path, before, after)
	switch {
	case err != nil:
		return err
	case !same:
		return fn(changes.ChangeKindModify, path, after, nil)
	case !after.IsDir() && statOf(after).Nlink > 1:
		return fn(changes.ChangeKindUnmodified, path, after, nil)
	}
	return nil
}

// same reports whether containerd's differ takes a file for unchanged.
func (w walk) same(ctx context.Context, path string, before, after fs.FileInfo) (bool, error) {
	b, a := statOf(before), statOf(after)
	if b.Mode != a.Mode || b.Uid != a.Uid || b.Gid != a.Gid || b.Rdev != a.Rdev {
		return false, nil
	}
	old, now := filepath.Join(w.base, path), filepath.Join(w.top.path, path)
	if same, err := sameResult(capability, old, now); err != nil || !same || before.IsDir() {
		return same, err
	}
	if before.Size() != after.Size() || before.ModTime().Unix() != after.ModTime().Unix() {
		return false, nil
	}
	// A time in whole seconds may have been truncated in an archive.
	if b, a := before.ModTime().Nanosecond(), after.ModTime().Nanosecond(); b != 0 || a != 0 {
		return b == a, nil
	}
	switch {
	case before.Mode()&fs.ModeSymlink != 0:
		return sameResult(readLink, old, now)
	case before.Size() == 0:
		return true, nil
	}
	return sameBytes(ctx, old, now)
}

// sameResult reports whether read returns the same for both files.
func sameResult(read func(path string) ([]byte, error), one, other string) (bool, error) {
	a, err := read(one)
	if err != nil {
		return false, err
	}
	b, err := read(other)
	return bytes.Equal(a, b), err
}

func capability(path string) ([]byte, error) {
	value, err := sysx.LGetxattr(path, "security.capability")
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return nil, fmt.Errorf("read the capabilities of %s: %w", path, err)
	}
	return value, nil
}

func readLink(path string) ([]byte, error) {
	target, err := os.Readlink(path)
	return []byte(target), err
}

// compareSize is the number of bytes of each file that sameBytes reads at a time.
const compareSize = 64 << 10

// sameBytes reports whether two files have the same contents.
func sameBytes(ctx context.Context, one, other string) (bool, error) {
	a, err := os.Open(one)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := os.Open(other)
	if err != nil {
		return false, err
	}
	defer b.Close()
	var parts [2][compareSize]byte
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n, end := io.ReadFull(a, parts[0][:])
		m, otherEnd := io.ReadFull(b, parts[1][:])
		if err := errors.Join(unexpected(end), unexpected(otherEnd)); err != nil {
			return false, err
		}
		if !bytes.Equal(parts[0][:n], parts[1][:m]) {
			return false, nil
		}
		if end != nil || otherEnd != nil {
			return true, nil
		}
	}
}

// unexpected returns an error of io.ReadFull, unless it says that the file has ended.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// lstat returns what is at a path, or nil if there is nothing.
func lstat(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return info, err
}

// isWhiteout reports whether an entry of the top directory stands for a deleted file.
func isWhiteout(info fs.FileInfo) bool {
	return info.Mode()&fs.ModeCharDevice != 0 && statOf(info).Rdev == 0
}

func statOf(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }
