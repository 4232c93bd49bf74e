package stargz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// ErrNoTable says that a layer has no table: neither its annotations nor its last bytes name one.
var ErrNoTable = errors.New("the layer has no table of contents")

// The footers of zstd:chunked are numbers of 64 bits, little-endian, and a magic, in a skippable
// frame of zstd (RFC 8878, section 3.1.2).
const (
	skippableHeader  = 8 // bytes: magic and length
	stargzFooter     = 40
	containersFooter = 64

	stargzMagic     = "GnUlInUx"
	containersMagic = "GNUlInUx"
)

var skippableMagic = []byte{0x50, 0x2a, 0x4d, 0x18}

// The footers of eStargz are an empty gzip member whose extra field (RFC 1952, section 2.3.1.1) has
// the offset of the table in 16 hexadecimal digits, and a magic. Stargz, the predecessor, had the
// same without the header of a subfield.
const (
	gzipHeader  = 12 // bytes, with the length of the extra field
	gzipTrailer = 13 // bytes: an empty deflate block, CRC-32 and length
	offsetSize  = 16 // digits
)

// extraField is an extra field: prefix, the offset of the table unless it is external, and magic.
type extraField struct {
	prefix, magic string
	external      bool
}

var extraFields = []extraField{
	{prefix: "SG\x16\x00", magic: "STARGZ"}, // eStargz; a subfield begins with an ID and a length
	{prefix: "SG\x11\x00", magic: "STARGZEXTERNALTOC", external: true},
	{magic: "STARGZ"}, // stargz
}

// emptyMember is the end of an empty gzip member.
var emptyMember = append([]byte{1, 0, 0, 0xff, 0xff}, make([]byte, 8)...)

// tail is the length of the longest footer, in bytes.
const tail = skippableHeader + containersFooter

// TailLength returns how many of a blob's last bytes LocateByFooter needs.
func TailLength(size int64) int64 { return min(size, tail) }

// LocateByFooter returns the place of the table in a layer's blob of size bytes. tail has the last
// TailLength(size) bytes, or more of them. The annotations of the layer's descriptor have the
// table's digest. The error wraps ErrNoTable if tail ends in no known footer.
func LocateByFooter(annotations map[string]string, size int64, tail []byte) (Table, error) {
	if int64(len(tail)) < TailLength(size) || int64(len(tail)) > size {
		return Table{}, fmt.Errorf("the last %d bytes of a layer of %d, want %d", len(tail), size, TailLength(size))
	}
	annotated, _, err := locate(annotations)
	if err != nil {
		return Table{}, err
	}
	t, err := parseFooter(size, tail)
	if err != nil {
		return Table{}, err
	}
	t.Plain, t.Stored = annotated.Plain, annotated.Stored
	if t.Format == 0 {
		t.Format = annotated.Format
	}
	return t, t.check(size)
}

// parseFooter tries each kind of footer.
func parseFooter(size int64, tail []byte) (Table, error) {
	if f := skippable(tail, containersFooter); bytes.HasSuffix(f, []byte(containersMagic)) {
		return parseNumbers(f)
	}
	if f := skippable(tail, stargzFooter); bytes.HasSuffix(f, []byte(stargzMagic)) {
		return parseNumbers(f)
	}
	for _, f := range extraFields {
		if digits, found := f.find(tail); found {
			return f.parse(size, digits)
		}
	}
	return Table{}, ErrNoTable
}

// skippable returns the content of a skippable frame of n bytes at the end of tail, or nil.
func skippable(tail []byte, n int) []byte {
	at := len(tail) - n - skippableHeader
	if at < 0 || !bytes.Equal(tail[at:at+4], skippableMagic) ||
		binary.LittleEndian.Uint32(tail[at+4:]) != uint32(n) {
		return nil
	}
	return tail[at+skippableHeader:]
}

// parseNumbers parses the footer of zstd:chunked: offset, length, plain length and type of the
// table. In newer ones of containers/storage, the place of other data follows. The annotations say
// which dialect it is.
func parseNumbers(footer []byte) (Table, error) {
	number := func(i int) int64 { return int64(binary.LittleEndian.Uint64(footer[8*i:])) }
	t := Table{Offset: number(0), Length: number(1), PlainLength: number(2)}
	t.DataEnd = t.Offset - skippableHeader
	return t, checkType(number(3))
}

// size returns the bytes of the field, and of the whole footer.
func (f extraField) size() (field, footer int) {
	field = len(f.prefix) + len(f.magic)
	if !f.external {
		field += offsetSize
	}
	return field, gzipHeader + field + gzipTrailer
}

// find reports whether tail ends in the footer with that field, and returns the digits in it.
func (f extraField) find(tail []byte) (digits []byte, found bool) {
	size, footerSize := f.size()
	if len(tail) < footerSize {
		return nil, false
	}
	footer := tail[len(tail)-footerSize:]
	field, isPrefixed := bytes.CutPrefix(footer[gzipHeader:gzipHeader+size], []byte(f.prefix))
	digits, isMagic := bytes.CutSuffix(field, []byte(f.magic))
	return digits, isPrefixed && isMagic && bytes.Equal(footer[:4], []byte{0x1f, 0x8b, 8, 4}) &&
		binary.LittleEndian.Uint16(footer[10:]) == uint16(size) && bytes.HasSuffix(footer, emptyMember)
}

// parse returns the table of a blob of size bytes that ends in the footer.
func (f extraField) parse(size int64, digits []byte) (Table, error) {
	_, footer := f.size()
	t := Table{Format: EStargz, External: f.external, DataEnd: size - int64(footer)}
	if f.external {
		return t, nil
	}
	offset, err := strconv.ParseInt(string(digits), 16, 64)
	if err != nil {
		return Table{}, fmt.Errorf("offset of the table in the footer: %q is no hexadecimal number", digits)
	}
	t.Offset, t.Length, t.DataEnd = offset, t.DataEnd-offset, offset
	return t, nil
}
