package fuse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// errMalformed says that bytes are not a FUSE request.
var errMalformed = errors.New("malformed FUSE request")

// request is one request of the kernel.
type request struct {
	gofuse.InHeader
	bytes []byte // starts with the header
	slot  slot   // slot that has the request; nil: there is none, or the read has taken the slot over
}

// parseRequest checks that b is one whole request. The result refers to b.
func parseRequest(b []byte) (request, error) {
	header, err := decode[gofuse.InHeader](b)
	if err != nil {
		return request{}, err
	}
	if int64(header.Length) != int64(len(b)) {
		return request{}, fmt.Errorf("%w: it has %d bytes, its header says %d", errMalformed, len(b), header.Length)
	}
	return request{InHeader: *header, bytes: b}, nil
}

// decode returns the wire struct T at the start of b. T has no pointers.
func decode[T any](b []byte) (*T, error) {
	if size := int(unsafe.Sizeof(*new(T))); len(b) < size {
		return nil, fmt.Errorf("%w: it has %d bytes, at least %d are needed", errMalformed, len(b), size)
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// wire returns the bytes of the wire struct v, which has no pointers.
func wire[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// name returns the name in a LOOKUP.
func (r request) name() (string, error) {
	name := r.bytes[inHeaderSize:]
	if len(name) == 0 || name[len(name)-1] != 0 {
		return "", fmt.Errorf("%w: a name without a terminator", errMalformed)
	}
	return string(name[:len(name)-1]), nil
}

// reply returns an answer with a payload. status is a negative errno or 0. If unique is 0, reply
// returns a notification, and status is its code.
func reply(unique uint64, status int32, payload ...[]byte) []byte {
	size := outHeaderSize
	for _, p := range payload {
		size += len(p)
	}
	b := make([]byte, outHeaderSize, size)
	putHeader(b, gofuse.OutHeader{Length: uint32(size), Status: status, Unique: unique})
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

func putHeader(b []byte, h gofuse.OutHeader) { copy(b, wire(&h)) }

// appendDirent appends one directory entry, or returns false if b would grow beyond limit bytes.
// next is the offset from which a READDIR continues after this entry.
func appendDirent(b []byte, limit int, node, next uint64, kind uint32, name string) (_ []byte, ok bool) {
	size := (24 + len(name) + direntAlign - 1) / direntAlign * direntAlign
	if len(b)+size > limit {
		return b, false
	}
	b = binary.NativeEndian.AppendUint64(b, node)
	b = binary.NativeEndian.AppendUint64(b, next)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	b = binary.NativeEndian.AppendUint32(b, kind)
	b = append(b, name...)
	return append(b, make([]byte, size-24-len(name))...), true
}
