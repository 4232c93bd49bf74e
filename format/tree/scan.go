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

// Names in a layer's tar (OCI image specification, image layer filesystem changeset), and of its
// PAX records, as star and GNU tar write them.
const (
	WhiteoutPrefix = ".wh."          // of the name of a whiteout: the rest is what it hides
	OpaqueMarker   = ".wh..wh..opq"  // of a whiteout that hides what lower layers have in its directory
	XattrPrefix    = "SCHILY.xattr." // of the key of a PAX record of an extended attribute
)

// maxFileSize is ext4's largest file size in bytes. containerd cannot unpack a larger file, and a
// sparse header can claim any size.
const maxFileSize = 1<<44 - 4096

// Scan reads an uncompressed tar stream to its end and calls emit for each entry, in order. For a
// regular file that is not empty it first calls content, which reads exactly e.Size bytes from r
// and sets e.Content. Files that do not become part of the layer, such as whiteouts, are emitted as
// empty files, without a call of content.
//
// archive/tar parses the headers, as in containerd: ustar, GNU and PAX, with sparse files expanded.
// The error wraps an error of archive/tar, content or emit. It wraps io.ErrUnexpectedEOF if the
// stream ends within an entry, and a *LimitError if it exceeds the limits. Scan also reads the
// bytes after the end of the archive, so that a hash of the stream covers all of it.
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
		return fmt.Errorf("read after the end of the archive: %w", err)
	}
	return nil
}

type scanner struct {
	tar     *tar.Reader
	limits  Limits
	content func(e *Entry, r io.Reader) error

	entries int64
	bytes   int64  // of files
	last    string // name of the previous entry, for errors
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
	e := NewEntry(h)
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
		return fmt.Errorf("file of %d bytes, the limit is %d", e.Size, int64(maxFileSize))
	}
	// meter counts the stream. Expanded sparse files are larger.
	if s.bytes += e.Size; s.limits.Bytes > 0 && s.bytes > s.limits.Bytes {
		return &LimitError{What: "bytes", Limit: s.limits.Bytes}
	}
	if err := s.content(e, s.tar); err != nil {
		return fmt.Errorf("read the content: %w", err)
	}
	return e.checkScanned()
}

// NewEntry returns the entry of a header that archive/tar has read, without its content. Size is 0
// if the entry becomes no file.
func NewEntry(h *tar.Header) *Entry {
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
		if LeavesFile(h.Name) {
			e.Size = h.Size
		}
	}
	return e
}

// LeavesFile reports whether an entry of that name becomes a file: it is neither the root nor a
// whiteout.
func LeavesFile(name string) bool {
	base := path.Base(name)
	if base == "." || base == ".." {
		base = path.Base(path.Clean(name))
	}
	return base != "." && base != ".." && base != "/" && !strings.HasPrefix(base, WhiteoutPrefix)
}

func xattrRecords(records map[string]string) []Xattr {
	var xattrs []Xattr
	for key, value := range records {
		if name, ok := strings.CutPrefix(key, XattrPrefix); ok {
			xattrs = append(xattrs, Xattr{Name: name, Value: []byte(value)})
		}
	}
	slices.SortFunc(xattrs, func(a, b Xattr) int { return cmp.Compare(a.Name, b.Name) })
	return xattrs
}

// maxTime is the last time whose nanoseconds since 1970 fit 63 bits.
var maxTime = time.Unix(0, math.MaxInt64)

// boundTime returns the time that containerd sets: 1970 for times that its arithmetic cannot
// represent.
func boundTime(t time.Time) Time {
	if t.Before(time.Unix(0, 0)) || t.After(maxTime) {
		return Time{}
	}
	return Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

// checkContent checks that Content has Size bytes, in a form that Apply takes.
func (e *Entry) checkContent() error {
	if e.Size < 0 || e.Size > maxFileSize {
		return fmt.Errorf("file of %d bytes, the limit is %d", e.Size, int64(maxFileSize))
	}
	c := e.Content
	have := int64(len(c.Inline))
	for _, x := range c.Extents {
		if x.Length <= 0 || x.Length > e.Size {
			return fmt.Errorf("extent of %d bytes in a file of %d", x.Length, e.Size)
		}
		if have += x.Length; have > e.Size {
			break
		}
	}
	if have != e.Size {
		return fmt.Errorf("%d bytes of content, want %d", have, e.Size)
	}
	if isInline := len(c.Extents) == 0; isInline && e.Size > InlineLimit || !isInline && c.Inline != nil {
		return fmt.Errorf("file of %d bytes in %d extents and %d bytes inline", e.Size, len(c.Extents), len(c.Inline))
	}
	return nil
}

// checkScanned checks that Content has Size bytes, in the one form that a file of that size has in
// Scan and in layer records: it determines tree IDs.
func (e *Entry) checkScanned() error {
	if e.Size <= InlineLimit && len(e.Content.Extents) > 0 {
		return fmt.Errorf("file of %d bytes in %d extents, want it inline", e.Size, len(e.Content.Extents))
	}
	return e.checkContent()
}

// meter is a reader that fails after limit bytes, unless limit is 0.
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
