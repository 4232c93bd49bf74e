// Package fswalk compares mounted directory trees. Walk reads all attributes and contents of a
// tree, and Diff describes the differences between two trees.
//
// Walk skips what differs between file systems: inode numbers, sizes and link counts of
// directories, change and access times. It needs the permission to read every file, and keeps all
// attributes in memory.
package fswalk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Entry holds the attributes of one path.
type Entry struct {
	Mode   uint32 // as in st_mode
	UID    uint32
	GID    uint32
	Nlink  uint64 // number of hard links; 0 for directories
	Rdev   uint64 // device number of a character or block device
	Size   int64  // of files and symlinks, in bytes
	Sec    int64  // modification time
	Nsec   int64
	Link   string            // target of a symlink
	SHA256 string            // of a file's content, hexadecimal
	Xattrs map[string]string // if a value cannot be read: "!" and the error
	Group  string            // the first path that Walk found with the same inode; empty if Nlink is 1
}

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Mode&unix.S_IFMT == unix.S_IFDIR }

// Listing maps paths to entries. Paths are relative to the root, which is ".".
type Listing map[string]Entry

// Walk reads dir and the tree below it, in bytewise order of the names. It skips names that a
// directory lists but that cannot be looked up: overlayfs lists some whiteouts.
func Walk(dir string) (Listing, error) {
	w := walker{root: dir, found: Listing{}, inodes: map[inode]string{}}
	if err := w.walk("."); err != nil {
		return nil, fmt.Errorf("walk %s: %w", dir, err)
	}
	return w.found, nil
}

type inode struct{ dev, ino uint64 }

type walker struct {
	root   string
	found  Listing
	inodes map[inode]string // the first path of each file with several links
}

func (w *walker) walk(p string) error {
	full := w.root + "/" + p
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		if err == unix.ENOENT && p != "." {
			return nil
		}
		return fmt.Errorf("stat %q: %w", p, err)
	}
	e := Entry{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}
	if err := w.fill(&e, p, &st); err != nil {
		return err
	}
	w.found[p] = e
	if !e.IsDir() {
		return nil
	}
	names, err := os.ReadDir(full) // sorted
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.walk(path.Join(p, name.Name())); err != nil {
			return err
		}
	}
	return nil
}

// fill sets the attributes that only some types have, and those that Lstat does not return.
func (w *walker) fill(e *Entry, p string, st *unix.Stat_t) (err error) {
	full := w.root + "/" + p
	if !e.IsDir() {
		e.Nlink = uint64(st.Nlink) // 32 bits on arm64
		w.group(e, p, st)
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFBLK, unix.S_IFCHR:
		e.Rdev = st.Rdev
	case unix.S_IFREG:
		e.Size = st.Size
		if e.SHA256, err = sum(full); err != nil {
			return err
		}
	case unix.S_IFLNK:
		e.Size = st.Size
		if e.Link, err = os.Readlink(full); err != nil {
			return err
		}
	}
	e.Xattrs, err = xattrs(full)
	return err
}

func (w *walker) group(e *Entry, p string, st *unix.Stat_t) {
	if st.Nlink < 2 {
		return
	}
	id := inode{st.Dev, st.Ino}
	if w.inodes[id] == "" {
		w.inodes[id] = p
	}
	e.Group = w.inodes[id]
}

func sum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func xattrs(file string) (map[string]string, error) {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(file, list)
	if err == unix.ENOTSUP || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the extended attributes of %q: %w", file, err)
	}
	values := map[string]string{}
	value := make([]byte, 1<<16)
	for _, name := range strings.Split(string(bytes.TrimSuffix(list[:n], []byte{0})), "\x00") {
		n, err := unix.Lgetxattr(file, name, value)
		var errno unix.Errno
		if errors.As(err, &errno) {
			values[name] = "!" + unix.ErrnoName(errno)
			continue
		}
		values[name] = string(value[:n])
	}
	return values, nil
}
