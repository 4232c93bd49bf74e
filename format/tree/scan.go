package tree

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	xattrPrefix    = "SCHILY.xattr."
)

// maxFileSize is the largest file that ext4 holds, in bytes: containerd cannot
// unpack a larger one, and a sparse header can claim one for free.
const maxFileSize = 1<<44 - 4096

// Scan reads an uncompressed tar stream to its end and calls emit for each
// entry, in order. For a regular file that is not empty content is called
// first; it reads the file's bytes from r, exactly e.Size of them, and fills
// e.Content. Files that no layer can leave behind (the content of a whiteout)
// are emitted empty, without a call to content.
//
// Headers mean what archive/tar makes of them, as for containerd: ustar, GNU
// and PAX, sparse files expanded. What archive/tar rejects is an error, a
// stream that ends within an entry is io.ErrUnexpectedEOF, and one beyond
// limits is a *LimitError. Errors of content and emit are passed on. Bytes
// behind the end of the archive are read and ignored, so that whoever hashes
// the stream has seen all of it.
func Scan(r io.Reader, limits Limits, content func(e *Entry, r io.Reader) error, emit func(e *Entry) error) error {
	in := &meter{r: r, limit: limits.Bytes}
	s := scanner{tar: tar.NewReader(in), limits: limits, content: content}
	for {
		e, err := s.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := emit(e); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return fmt.Errorf("read behind the end of the archive: %w", err)
	}
	return nil
}

type scanner struct {
	tar     *tar.Reader
	limits  Limits
	content func(e *Entry, r io.Reader) error

	entries int64
	bytes   int64  // of files
	last    string // name of the entry before, to say where the stream breaks
}

func (s *scanner) next() (*Entry, error) {
	h, err := s.tar.Next()
	if err == io.EOF {
		return nil, io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("read the entry after %q: %w", s.last, err)
	}
	if s.entries++; s.limits.Entries > 0 && s.entries > s.limits.Entries {
		return nil, &LimitError{What: "entries", Limit: s.limits.Entries}
	}
	s.last = h.Name
	e := newEntry(h)
	if e.Size == 0 {
		return e, nil
	}
	if err := s.readContent(e); err != nil {
		return nil, fmt.Errorf("entry %q: %w", e.Name, err)
	}
	return e, nil
}

func (s *scanner) readContent(e *Entry) error {
	if e.Size > maxFileSize {
		return fmt.Errorf("a file of %d bytes", e.Size)
	}
	// Sparse files are the reason to count here what meter counts too.
	if s.bytes += e.Size; s.limits.Bytes > 0 && s.bytes > s.limits.Bytes {
		return &LimitError{What: "bytes", Limit: s.limits.Bytes}
	}
	if err := s.content(e, s.tar); err != nil {
		return fmt.Errorf("read its content: %w", err)
	}
	return e.checkContent()
}

func newEntry(h *tar.Header) *Entry {
	e := &Entry{
		Type: h.Typeflag, Name: h.Name,
		Mode: h.Mode & 0o7777, UID: h.Uid, GID: h.Gid,
		Mtime: boundTime(h.ModTime), Xattrs: xattrRecords(h.PAXRecords),
	}
	switch h.Typeflag {
	case tar.TypeLink, tar.TypeSymlink:
		e.Linkname = h.Linkname
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.Major, e.Minor = h.Devmajor, h.Devminor
	case tar.TypeReg:
		if leavesFile(h.Name) {
			e.Size = h.Size
		}
	}
	return e
}

// leavesFile tells whether an entry of that name can become a file: it is
// neither the root nor a whiteout.
func leavesFile(name string) bool {
	base := path.Base(path.Clean(name))
	return base != "." && base != ".." && base != "/" && !strings.HasPrefix(base, whiteoutPrefix)
}

func xattrRecords(records map[string]string) []Xattr {
	var xattrs []Xattr
	for key, value := range records {
		if name, ok := strings.CutPrefix(key, xattrPrefix); ok {
			xattrs = append(xattrs, Xattr{Name: name, Value: []byte(value)})
		}
	}
	slices.SortFunc(xattrs, func(a, b Xattr) int { return cmp.Compare(a.Name, b.Name) })
	return xattrs
}

// maxTime is the last nanosecond that fits 63 bits.
var maxTime = time.Unix(0, math.MaxInt64)

// boundTime keeps a time as containerd sets it: what its clock arithmetic
// cannot hold becomes 1970.
func boundTime(t time.Time) Time {
	if t.Before(time.Unix(0, 0)) || t.After(maxTime) {
		return Time{}
	}
	return Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

// checkContent tells whether Content is what Size says and of the form that
// its length asks for.
func (e *Entry) checkContent() error {
	if e.Size < 0 || e.Size > maxFileSize {
		return fmt.Errorf("a file of %d bytes", e.Size)
	}
	c := e.Content
	have := int64(len(c.Inline))
	for _, x := range c.Extents {
		if x.Length <= 0 || x.Length > e.Size {
			return fmt.Errorf("an extent of %d bytes in a file of %d", x.Length, e.Size)
		}
		if have += x.Length; have > e.Size {
			break
		}
	}
	if have != e.Size {
		return fmt.Errorf("%d bytes of content where %d belong", have, e.Size)
	}
	if (e.Size <= InlineLimit) != (len(c.Extents) == 0) || e.Size > InlineLimit && c.Inline != nil {
		return fmt.Errorf("a file of %d bytes in %d extents and %d bytes inline", e.Size, len(c.Extents), len(c.Inline))
	}
	return nil
}

// meter refuses to read more than limit bytes, where there is a limit.
type meter struct {
	r           io.Reader
	limit, read int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.read += int64(n)
	if m.limit > 0 && m.read > m.limit && (err == nil || errors.Is(err, io.EOF)) {
		return 0, &LimitError{What: "bytes", Limit: m.limit}
	}
	return n, err
}
