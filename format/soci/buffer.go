package soci

import (
	"encoding/binary"
	"errors"
)

var errBuffer = errors.New("the FlatBuffer is invalid")

// buffer reads a FlatBuffer. After an error it returns zeros and keeps the error, so that callers
// can check it at the end.
//
// Strings and vectors together may have at most twice the bytes of the buffer. So a buffer that
// refers to the same bytes again and again is refused, and reading all of it takes linear time.
type buffer struct {
	data []byte
	left int // bytes that strings and vectors may still have
	err  error
}

func newBuffer(data []byte) *buffer { return &buffer{data: data, left: 2 * len(data)} }

func (b *buffer) fail() {
	if b.err == nil {
		b.err = errBuffer
	}
}

// bytes returns n bytes. If they are not all in the buffer, it returns nil.
func (b *buffer) bytes(at, n int) []byte {
	if b.err != nil || at < 0 || n < 0 || at > len(b.data) || n > len(b.data)-at {
		b.fail()
		return nil
	}
	return b.data[at : at+n]
}

func (b *buffer) u16(at int) int {
	if v := b.bytes(at, 2); v != nil {
		return int(binary.LittleEndian.Uint16(v))
	}
	return 0
}

func (b *buffer) u32(at int) uint32 {
	if v := b.bytes(at, 4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

// follow returns the position to which the offset at a position leads. It may be outside.
func (b *buffer) follow(at int) int { return at + int(b.u32(at)) }

// vector returns the bytes of a vector whose elements have a size, and their number.
func (b *buffer) vector(at, size int) (data []byte, n int) {
	count := b.u32(at)
	if int64(count)*int64(size) > int64(len(b.data)) {
		b.fail()
		return nil, 0
	}
	data = b.bytes(at+4, int(count)*size)
	if b.left -= len(data); b.left < 0 {
		b.fail()
		return nil, 0
	}
	if b.err != nil {
		return nil, 0
	}
	return data, int(count)
}

// table is a table of a FlatBuffer. The zero table has no fields.
type table struct {
	b      *buffer
	at     int
	vtable []byte // the offsets of fields
}

func (b *buffer) root() table { return b.table(b.follow(0)) }

func (b *buffer) table(at int) table {
	vtable := at - int(int32(b.u32(at)))
	return table{b, at, b.bytes(vtable+4, b.u16(vtable)-4)}
}

// field returns the position of a field's value, or 0 if the field has its default.
func (t table) field(n int) int {
	if t.b == nil || t.b.err != nil || 2*n+2 > len(t.vtable) {
		return 0
	}
	offset := int(binary.LittleEndian.Uint16(t.vtable[2*n:]))
	if offset == 0 {
		return 0
	}
	return t.at + offset
}

func (t table) int8(n int, missing int8) int8 {
	at := t.field(n)
	if at == 0 {
		return missing
	}
	if v := t.b.bytes(at, 1); v != nil {
		return int8(v[0])
	}
	return 0
}

func (t table) uint32(n int) uint32 {
	if at := t.field(n); at != 0 {
		return t.b.u32(at)
	}
	return 0
}

func (t table) int32(n int) int32 { return int32(t.uint32(n)) }

func (t table) int64(n int) int64 {
	at := t.field(n)
	if at == 0 {
		return 0
	}
	if v := t.b.bytes(at, 8); v != nil {
		return int64(binary.LittleEndian.Uint64(v))
	}
	return 0
}

// raw returns a string or a vector of bytes, as a part of the buffer.
func (t table) raw(n int) []byte {
	at := t.field(n)
	if at == 0 {
		return nil
	}
	data, _ := t.b.vector(t.b.follow(at), 1)
	return data
}

func (t table) string(n int) string { return string(t.raw(n)) }

func (t table) table(n int) table {
	at := t.field(n)
	if at == 0 {
		return table{}
	}
	return t.b.table(t.b.follow(at))
}

// list is a vector of strings or tables.
type list struct {
	b     *buffer
	at, n int // position and number of the elements' offsets
}

func (t table) list(n int) list {
	at := t.field(n)
	if at == 0 {
		return list{}
	}
	at = t.b.follow(at)
	_, count := t.b.vector(at, 4)
	return list{t.b, at + 4, count}
}

func (l list) table(i int) table { return l.b.table(l.b.follow(l.at + 4*i)) }

func (l list) string(i int) string {
	data, _ := l.b.vector(l.b.follow(l.at+4*i), 1)
	return string(data)
}
