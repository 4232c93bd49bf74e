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

// A layer record is the list of a layer's entries without the contents of its files. It is written
// once, and Apply reads it for each tree of which the layer is a part. docs/format.md specifies its
// bytes. A list of entries has exactly one encoding.
const recordMagic = "LGTRREC" + string(rune(RecordFormat))

const (
	// RecordFormat is the number of the format of layer records.
	RecordFormat = 1

	// maxString bounds a name, a link target and all attributes of an entry in bytes, as
	// archive/tar does.
	maxString = 1 << 20
	maxMode   = 0o7777
	// maxSeconds is the last second whose nanoseconds since 1970 fit 63 bits.
	maxSeconds = math.MaxInt64 / 1_000_000_000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// RecordWriter writes a layer record.
type RecordWriter struct {
	w     *bufio.Writer
	crc   uint32
	buf   []byte
	name  string // of the previous entry
	count uint64
}

// NewRecordWriter returns a writer of one record to w.
func NewRecordWriter(w io.Writer) *RecordWriter {
	return &RecordWriter{w: bufio.NewWriterSize(w, 64<<10), buf: []byte(recordMagic)}
}

// Add appends an entry. It fails if a RecordReader could not return the same entry.
func (w *RecordWriter) Add(e *Entry) error {
	if err := e.check(); err != nil {
		return fmt.Errorf("write record of entry %q: %w", e.Name, err)
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

// Close writes the trailer, which every record must have. It does not close the underlying writer.
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

// check checks that Scan can emit e.
func (e *Entry) check() error {
	switch {
	case e.Type == 0:
		return errors.New("no type")
	case len(e.Name) > maxString:
		return fmt.Errorf("name of %d bytes", len(e.Name))
	case len(e.Linkname) > maxString:
		return fmt.Errorf("link target of %d bytes", len(e.Linkname))
	case e.Mode < 0 || e.Mode > maxMode:
		return fmt.Errorf("mode %#o", e.Mode)
	case e.Mtime.Sec < 0 || e.Mtime.Sec > maxSeconds || e.Mtime.Nsec >= 1e9:
		return fmt.Errorf("time of %d s %d ns", e.Mtime.Sec, e.Mtime.Nsec)
	}
	total := 0
	for i, x := range e.Xattrs {
		if i > 0 && x.Name <= e.Xattrs[i-1].Name {
			return fmt.Errorf("attributes are not sorted: %q after %q", x.Name, e.Xattrs[i-1].Name)
		}
		total += len(x.Name) + len(x.Value)
	}
	if total > maxString {
		return fmt.Errorf("extended attributes of %d bytes", total)
	}
	if e.Type == tar.TypeReg {
		return e.checkScanned()
	}
	return nil
}
