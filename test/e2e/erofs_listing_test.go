//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	goerofs "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"lighter/test/testkit/fswalk"
)

// listGoErofs lists an image like fswalk.Walk, but with go-erofs instead of the kernel.
func listGoErofs(meta, device string) (fswalk.Listing, error) {
	m, err := os.Open(meta)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	d, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	img, err := goerofs.Open(m, goerofs.WithExtraDevices(d))
	if err != nil {
		return nil, err
	}
	l := goErofsLister{img, fswalk.Listing{}, map[int64]string{}}
	return l.found, l.list(".")
}

type goErofsLister struct {
	fs.FS
	found fswalk.Listing
	first map[int64]string // the first name of each inode with several names
}

func (l *goErofsLister) list(p string) error {
	info, err := l.FS.(fs.ReadLinkFS).Lstat(p)
	if err != nil {
		return err
	}
	st := info.Sys().(*goerofs.Stat)
	e := fswalk.Entry{Mode: unixMode(st.Mode), UID: st.UID, GID: st.GID, Sec: int64(st.Mtime), Nsec: int64(st.MtimeNs),
		Xattrs: goErofsXattrs(st)}
	if value, ok := e.Xattrs["security.capability"]; ok && value == "" {
		e.Xattrs["security.capability"] = "!EINVAL" // as in fswalk: the kernel fails to return an empty one
	}
	if e.IsDir() {
		l.found[p] = e
		names, err := fs.ReadDir(l, p)
		for _, name := range names {
			if err == nil {
				err = l.list(path.Join(p, name.Name()))
			}
		}
		return err
	}
	if e.Nlink = uint64(st.Nlink); e.Nlink > 1 {
		if l.first[st.Ino] == "" {
			l.first[st.Ino] = p
		}
		e.Group = l.first[st.Ino]
	}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Rdev = uint64(st.Rdev)
	case unix.S_IFREG:
		e.Size = st.Size
		e.SHA256, err = l.sum(p)
	case unix.S_IFLNK:
		e.Size = st.Size
		e.Link, err = fs.ReadLink(l.FS, p)
	}
	l.found[p] = e
	if err != nil {
		return fmt.Errorf("read %q: %w", p, err)
	}
	return nil
}

func (l *goErofsLister) sum(p string) (string, error) {
	f, err := l.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// unixMode converts a mode of Go to the value that stat(2) returns in st_mode.
func unixMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	for _, bit := range []struct {
		of   fs.FileMode
		mode uint32
	}{{fs.ModeSetuid, unix.S_ISUID}, {fs.ModeSetgid, unix.S_ISGID}, {fs.ModeSticky, unix.S_ISVTX}} {
		if m&bit.of != 0 {
			mode |= bit.mode
		}
	}
	switch m.Type() {
	case 0:
		return mode | unix.S_IFREG
	case fs.ModeDir:
		return mode | unix.S_IFDIR
	case fs.ModeSymlink:
		return mode | unix.S_IFLNK
	case fs.ModeNamedPipe:
		return mode | unix.S_IFIFO
	case fs.ModeSocket:
		return mode | unix.S_IFSOCK
	case fs.ModeDevice:
		return mode | unix.S_IFBLK
	case fs.ModeDevice | fs.ModeCharDevice:
		return mode | unix.S_IFCHR
	}
	return mode
}
