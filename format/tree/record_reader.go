package tree

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"lighter/format/chunk"
)

// RecordReader reads a layer record. It is a LayerSource.
type RecordReader struct {
	in    recordInput
	name  []byte // of the entry before
	count uint64
	err   error // that ended the reading, io.EOF if all was well
}

var _ LayerSource = (*RecordReader)(nil)

// NewRecordReader returns a reader of the record that r gives.
func NewRecordReader(r io.Reader) *RecordReader {
	return &RecordReader{in: recordInput{r: r}}
}

// Next returns the next entry, which is the caller's to keep. At the end, when
// the number of entries and the checksum have proved right, it is io.EOF. A
// record that is cut short is io.ErrUnexpectedEOF; whatever else is wrong is
// an error too, and so is every call after it.
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
	if r.in.buf == nil {
		r.in.buf = make([]byte, 64<<10)
		if magic := r.in.bytes(len(recordMagic)); r.in.err == nil && string(magic) != recordMagic {
			return nil, errors.New("it does not start as a layer record does")
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
		return fmt.Errorf("a name that shares %d bytes with one of %d", shared, len(r.name))
	}
	if shared < uint64(len(r.name)) && len(rest) > 0 && rest[0] == r.name[shared] {
		return errors.New("a name that repeats what it could share")
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
			r.in.fail(errors.New("an extent of no bytes, or without an ID"))
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

// trailer returns io.EOF if the record ends as it should.
func (r *RecordReader) trailer() error {
	count := r.in.uvarint(math.MaxUint64)
	if r.in.err != nil {
		return r.in.err
	}
	sum := r.in.checksum()
	stored := r.in.bytes(4)
	switch {
	case r.in.err != nil:
		return r.in.err
	case count != r.count:
		return fmt.Errorf("the trailer counts %d entries", count)
	case binary.LittleEndian.Uint32(stored) != sum:
		return errors.New("the checksum does not match")
	}
	r.in.byte()
	switch r.in.err {
	case io.ErrUnexpectedEOF:
		return io.EOF
	case nil:
		return errors.New("something follows the trailer")
	}
	return r.in.err
}

// recordInput reads what records are made of. After an error it returns zeros
// and keeps the error, so that a caller looks at it once for each entry.
type recordInput struct {
	r          io.Reader
	buf        []byte
	start, end int    // buf[start:end] is read and not used yet
	summed     int    // buf[summed:start] is used and not in crc yet
	crc        uint32 // of all that was used before buf[summed]
	long       []byte // what does not fit into buf
	err        error
}

func (in *recordInput) fail(err error) {
	if in.err == nil {
		in.err = err
	}
}

// checksum returns the CRC of everything used so far.
func (in *recordInput) checksum() uint32 {
	in.crc = crc32.Update(in.crc, castagnoli, in.buf[in.summed:in.start])
	in.summed = in.start
	return in.crc
}

// fill makes sure that n bytes are in buf, which must be able to hold them.
func (in *recordInput) fill(n int) bool {
	if in.err != nil {
		return false
	}
	if in.end-in.start >= n {
		return true
	}
	in.checksum()
	in.end = copy(in.buf, in.buf[in.start:in.end])
	in.start, in.summed = 0, 0
	got, err := io.ReadAtLeast(in.r, in.buf[in.end:], n-in.end)
	in.end += got
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	in.err = err
	return err == nil
}

func (in *recordInput) byte() byte {
	if !in.fill(1) {
		return 0
	}
	in.start++
	return in.buf[in.start-1]
}

// bytes returns the next n bytes, valid until the next call.
func (in *recordInput) bytes(n int) []byte {
	if n <= len(in.buf) {
		if !in.fill(n) {
			return make([]byte, n)
		}
		in.start += n
		return in.buf[in.start-n : in.start]
	}
	in.long = in.long[:0]
	for n > 0 && in.err == nil {
		piece := in.bytes(min(n, len(in.buf)))
		in.long = append(in.long, piece...)
		n -= len(piece)
	}
	return in.long
}

func (in *recordInput) string() []byte { return in.bytes(int(in.uvarint(maxString))) }

func (in *recordInput) uvarint(limit uint64) uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := in.byte()
		if shift == 63 && b > 1 {
			in.fail(errors.New("a number of more than 64 bits"))
			return 0
		}
		if shift > 0 && b == 0 {
			in.fail(errors.New("a number in more bytes than it needs"))
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	if v > limit {
		in.fail(fmt.Errorf("%d where at most %d can be", v, limit))
		return 0
	}
	return v
}

func (in *recordInput) varint() int64 {
	v := in.uvarint(math.MaxUint64)
	return int64(v>>1) ^ -int64(v&1)
}
