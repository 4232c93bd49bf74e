package tree

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"lighter/format/chunk"
)

// RecordReader reads a layer record. It is a LayerSource.
type RecordReader struct {
	in    recordInput
	begun bool   // the magic was read
	name  []byte // of the previous entry
	count uint64
	err   error // of all further calls; io.EOF after a valid trailer
}

var _ LayerSource = (*RecordReader)(nil)

// NewRecordReader returns a reader of the record in r.
func NewRecordReader(r io.Reader) *RecordReader {
	return &RecordReader{in: recordInput{r: bufio.NewReaderSize(r, 64<<10)}}
}

// Next returns the next entry, which the caller may keep. After the last one it checks the number
// of entries and the checksum, and returns io.EOF. The error wraps io.ErrUnexpectedEOF if the
// record is truncated. After an error, each further call returns the same error.
func (r *RecordReader) Next() (*Entry, error) {
	if r.err != nil {
		return nil, r.err
	}
	e, err := r.next()
	if err == io.EOF {
		r.err = io.EOF
		return nil, io.EOF
	}
	if err != nil {
		r.err = fmt.Errorf("read entry %d of a layer record: %w", r.count, err)
		return nil, r.err
	}
	r.count++
	return e, nil
}

func (r *RecordReader) next() (*Entry, error) {
	if !r.begun {
		r.begun = true
		if magic := r.in.bytes(len(recordMagic)); r.in.err == nil && string(magic) != recordMagic {
			return nil, errors.New("wrong magic")
		}
	}
	kind := r.in.byte()
	if r.in.err != nil {
		return nil, r.in.err
	}
	if kind == 0 {
		return nil, r.trailer()
	}
	e := &Entry{Type: kind}
	if err := r.header(e); err != nil {
		return nil, err
	}
	r.body(e)
	r.xattrs(e)
	if r.in.err != nil {
		return nil, r.in.err
	}
	return e, e.check()
}

func (r *RecordReader) header(e *Entry) error {
	shared := r.in.uvarint(maxString)
	rest := r.in.string()
	if shared > uint64(len(r.name)) {
		return fmt.Errorf("name shares %d bytes with the previous name of %d bytes", shared, len(r.name))
	}
	if shared < uint64(len(r.name)) && len(rest) > 0 && rest[0] == r.name[shared] {
		return errors.New("name shares fewer bytes with the previous name than it could")
	}
	r.name = append(r.name[:shared], rest...)
	e.Name = string(r.name)
	e.Mode = int64(r.in.uvarint(maxMode))
	e.UID = int(r.in.varint())
	e.GID = int(r.in.varint())
	e.Mtime.Sec = int64(r.in.uvarint(maxSeconds))
	e.Mtime.Nsec = uint32(r.in.uvarint(1e9 - 1))
	return r.in.err
}

func (r *RecordReader) body(e *Entry) {
	switch e.Type {
	case tar.TypeReg:
		e.Size = int64(r.in.uvarint(maxFileSize))
		r.content(e)
	case tar.TypeLink, tar.TypeSymlink:
		e.Linkname = string(r.in.string())
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.Major = r.in.varint()
		e.Minor = r.in.varint()
	}
}

func (r *RecordReader) content(e *Entry) {
	if e.Size == 0 {
		return
	}
	if e.Size <= InlineLimit {
		e.Content.Inline = bytes.Clone(r.in.bytes(int(e.Size)))
		return
	}
	for left := uint64(e.Size); left > 0 && r.in.err == nil; {
		length := r.in.uvarint(left<<1 | 1)
		x := Extent{Length: int64(length >> 1)}
		if length&1 == 0 {
			copy(x.ID[:], r.in.bytes(chunk.Size))
		}
		if x.Length == 0 || x.IsHole() != (length&1 == 1) {
			r.in.fail(errors.New("extent without bytes or without an ID"))
		}
		e.Content.Extents = append(e.Content.Extents, x)
		left -= length >> 1
	}
}

func (r *RecordReader) xattrs(e *Entry) {
	total := 0
	for n := r.in.uvarint(maxString); n > 0 && r.in.err == nil; n-- {
		x := Xattr{Name: string(r.in.string())}
		x.Value = bytes.Clone(r.in.string())
		if total += 1 + len(x.Name) + len(x.Value); total > 2*maxString {
			r.in.fail(fmt.Errorf("extended attributes of more than %d bytes", maxString))
		}
		e.Xattrs = append(e.Xattrs, x)
	}
}

// trailer returns io.EOF if the trailer is valid.
func (r *RecordReader) trailer() error {
	count := r.in.uvarint(math.MaxUint64)
	if r.in.err != nil {
		return r.in.err
	}
	sum := r.in.crc
	stored := r.in.bytes(4)
	switch {
	case r.in.err != nil:
		return r.in.err
	case count != r.count:
		return fmt.Errorf("the trailer has a count of %d entries, want %d", count, r.count)
	case binary.LittleEndian.Uint32(stored) != sum:
		return errors.New("the checksum does not match")
	}
	r.in.byte()
	switch r.in.err {
	case io.ErrUnexpectedEOF:
		return io.EOF
	case nil:
		return errors.New("bytes after the trailer")
	}
	return r.in.err
}

// recordInput reads the fields of a record. After an error it returns zeros and keeps the error, so
// that callers can check it once per entry.
type recordInput struct {
	r   *bufio.Reader
	crc uint32 // of all bytes that were returned
	buf []byte
	err error
}

func (in *recordInput) fail(err error) {
	if in.err == nil {
		in.err = err
	}
}

func (in *recordInput) byte() byte { return in.bytes(1)[0] }

// bytes returns the next n bytes, valid until the next call.
func (in *recordInput) bytes(n int) []byte {
	in.buf = slices.Grow(in.buf[:0], n)[:n]
	if in.err == nil {
		_, in.err = io.ReadFull(in.r, in.buf)
		in.crc = crc32.Update(in.crc, castagnoli, in.buf)
	}
	if in.err != nil {
		clear(in.buf)
	}
	if in.err == io.EOF {
		in.err = io.ErrUnexpectedEOF
	}
	return in.buf
}

func (in *recordInput) string() []byte { return in.bytes(int(in.uvarint(maxString))) }

func (in *recordInput) uvarint(limit uint64) uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := in.byte()
		if shift == 63 && b > 1 {
			in.fail(errors.New("number of more than 64 bits"))
			return 0
		}
		if shift > 0 && b == 0 {
			in.fail(errors.New("number in more bytes than necessary"))
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	if v > limit {
		in.fail(fmt.Errorf("number %d exceeds the limit of %d", v, limit))
		return 0
	}
	return v
}

func (in *recordInput) varint() int64 {
	v := in.uvarint(math.MaxUint64)
	return int64(v>>1) ^ -int64(v&1)
}
