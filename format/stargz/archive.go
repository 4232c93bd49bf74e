package stargz

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"lighter/format/tree"
)

const tarBlock = 512 // bytes

// item is an entry of a tar, with its place there.
type item struct {
	*tar.Header
	begin, content, end int64 // of its headers, of its content, and of the content's padding
}

// readItem reads the headers of the entry at an offset of a tar. It returns io.EOF at the archive's
// end.
func readItem(archive io.ReaderAt, size, at int64) (item, error) {
	in := &counted{r: io.NewSectionReader(archive, at, size-at)}
	h, err := tar.NewReader(in).Next()
	if err != nil {
		return item{}, err
	}
	it := item{Header: h, begin: at, content: at + in.n}
	if err := it.check(); err != nil {
		return item{}, fmt.Errorf("entry %q: %w", h.Name, err)
	}
	it.end = it.content
	if h.Typeflag == tar.TypeReg {
		it.end += (h.Size + tarBlock - 1) &^ (tarBlock - 1)
	}
	if it.end > size {
		return item{}, fmt.Errorf("entry %q: %w", h.Name, io.ErrUnexpectedEOF)
	}
	return it, nil
}

// check refuses what tables cannot express.
func (it item) check() error {
	if typeName(it.Typeflag) == "" {
		return fmt.Errorf("type %q has no place in a table", it.Typeflag)
	}
	for key := range it.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return errors.New("a sparse file has no place in a table")
		}
		if name, ok := strings.CutPrefix(key, tree.XattrPrefix); ok {
			if err := checkName(strings.ToValidUTF8(name, lost)); err != nil {
				return fmt.Errorf("extended attribute %q: %w", name, err)
			}
		}
	}
	for _, name := range []string{it.Name, it.Linkname} {
		if err := checkName(strings.ToValidUTF8(name, lost)); err != nil {
			return fmt.Errorf("name or link target: %w", err)
		}
	}
	return nil
}

// row returns the row of the entry, without its digests and its places in the blob.
func (it item) row() row {
	r := row{Type: typeName(it.Typeflag), Name: it.Name, LinkName: it.Linkname, Mode: it.Mode, UID: it.Uid, GID: it.Gid,
		UserName: it.Uname, GroupName: it.Gname, DevMajor: it.Devmajor, DevMinor: it.Devminor,
		ModTime: timeText(it.ModTime), AccessTime: timeText(it.AccessTime), ChangeTime: timeText(it.ChangeTime)}
	if it.Typeflag == tar.TypeReg {
		r.Size = it.Size
	}
	for key, value := range it.PAXRecords {
		if name, ok := strings.CutPrefix(key, tree.XattrPrefix); ok {
			if r.Xattrs == nil {
				r.Xattrs = map[string][]byte{}
			}
			r.Xattrs[name] = []byte(value)
		}
	}
	return r
}

// timeText returns a time as tables have it. 1970 and no time are empty.
func timeText(t time.Time) string {
	if t.IsZero() || t.Equal(time.Unix(0, 0)) {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// typeName returns the name of an entry's type in tables, or "" if it has none.
func typeName(kind byte) string {
	for name, k := range types {
		if k == kind {
			return name
		}
	}
	return ""
}

// counted counts the bytes that are read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
