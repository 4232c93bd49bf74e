package tree

import (
	"archive/tar"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// A layer record is the list of a layer's entries without the contents of its
// files: what Apply needs to know of a layer, written once and read for each
// tree that the layer is part of. docs/format.md has the bytes; a list of
// entries has one record only.
const recordMagic = "LGTRREC\x01"

const (
	// maxString is what archive/tar lets a name, a link target or all PAX
	// records of an entry have, in bytes.
	maxString = 1 << 20
	maxMode   = 0o7777
	// maxSeconds is the last second whose nanoseconds fit 63 bits.
	maxSeconds = math.MaxInt64 / 1_000_000_000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// RecordWriter writes a layer record.
type RecordWriter struct {
	w     *bufio.Writer
	crc   uint32
	buf   []byte
	name  string // of the entry before
	count uint64
}

// NewRecordWriter returns a writer of one record to w.
func NewRecordWriter(w io.Writer) *RecordWriter {
	return &RecordWriter{w: bufio.NewWriterSize(w, 64<<10), buf: []byte(recordMagic)}
}

// Add appends an entry. It refuses what RecordReader would not give back.
func (w *RecordWriter) Add(e *Entry) error {
	if err := e.check(); err != nil {
		return fmt.Errorf("record entry %q: %w", e.Name, err)
	}
	shared := 0
	for shared < len(w.name) && shared < len(e.Name) && w.name[shared] == e.Name[shared] {
		shared++
	}
	b := append(w.buf, e.Type)
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendString(b, e.Name[shared:])
	b = binary.AppendUvarint(b, uint64(e.Mode))
	b = binary.AppendVarint(b, int64(e.UID))
	b = binary.AppendVarint(b, int64(e.GID))
	b = binary.AppendUvarint(b, uint64(e.Mtime.Sec))
	b = binary.AppendUvarint(b, uint64(e.Mtime.Nsec))
	b = appendBody(b, e)
	b = binary.AppendUvarint(b, uint64(len(e.Xattrs)))
	for _, x := range e.Xattrs {
		b = appendString(b, x.Name)
		b = appendString(b, x.Value)
	}
	w.buf, w.name = b, e.Name
	w.count++
	return w.flush()
}

// Close writes the trailer. A record without it is refused by RecordReader. It
// does not close the underlying writer.
func (w *RecordWriter) Close() error {
	w.buf = binary.AppendUvarint(append(w.buf, 0), w.count)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, crc32.Update(w.crc, castagnoli, w.buf))
	if err := w.flush(); err != nil {
		return err
	}
	return w.w.Flush()
}

func (w *RecordWriter) flush() error {
	w.crc = crc32.Update(w.crc, castagnoli, w.buf)
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBody(b []byte, e *Entry) []byte {
	switch e.Type {
	case tar.TypeReg:
		b = binary.AppendUvarint(b, uint64(e.Size))
		b = append(b, e.Content.Inline...)
		for _, x := range e.Content.Extents {
			if x.IsHole() {
				b = binary.AppendUvarint(b, uint64(x.Length)<<1|1)
				continue
			}
			b = binary.AppendUvarint(b, uint64(x.Length)<<1)
			b = append(b, x.ID[:]...)
		}
	case tar.TypeLink, tar.TypeSymlink:
		b = appendString(b, e.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		b = binary.AppendVarint(b, e.Major)
		b = binary.AppendVarint(b, e.Minor)
	}
	return b
}

// check tells whether e is one that Scan can emit.
func (e *Entry) check() error {
	switch {
	case e.Type == 0:
		return errors.New("an entry without a type")
	case len(e.Name) > maxString:
		return fmt.Errorf("a name of %d bytes", len(e.Name))
	case len(e.Linkname) > maxString:
		return fmt.Errorf("a link target of %d bytes", len(e.Linkname))
	case e.Mode < 0 || e.Mode > maxMode:
		return fmt.Errorf("mode %#o", e.Mode)
	case e.Mtime.Sec < 0 || e.Mtime.Sec > maxSeconds || e.Mtime.Nsec >= 1e9:
		return fmt.Errorf("a time of %d s %d ns", e.Mtime.Sec, e.Mtime.Nsec)
	}
	total := 0
	for i, x := range e.Xattrs {
		if i > 0 && x.Name <= e.Xattrs[i-1].Name {
			return fmt.Errorf("attribute %q comes after %q", x.Name, e.Xattrs[i-1].Name)
		}
		total += len(x.Name) + len(x.Value)
	}
	if total > maxString {
		return fmt.Errorf("extended attributes of %d bytes", total)
	}
	if e.Type == tar.TypeReg {
		return e.checkContent()
	}
	return nil
}
