package fuse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Opcodes of include/uapi/linux/fuse.h; go-fuse keeps its own to itself.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opInterrupt   = 36
	opDestroy     = 38
	opNotifyReply = 41
	opBatchForget = 42
)

const (
	inHeaderSize  = int(unsafe.Sizeof(fuse.InHeader{}))
	outHeaderSize = int(unsafe.Sizeof(fuse.OutHeader{}))

	// requestSize is how many bytes every read of the connection offers: the
	// least that the kernel accepts (FUSE_MIN_READ_BUFFER), and enough for the
	// largest request that a read-only directory can get, a name to look up.
	requestSize = 8192
)

// errMalformed says that bytes are not a FUSE request.
var errMalformed = errors.New("malformed FUSE request")

// request is one request of the kernel; bytes starts with the header.
type request struct {
	fuse.InHeader
	bytes []byte
	slot  slot // in which it was read; nil once it is somebody else's, or without a journal
}

// parseRequest checks that b is one whole request. The request refers to b.
func parseRequest(b []byte) (request, error) {
	header, err := decode[fuse.InHeader](b)
	if err != nil {
		return request{}, err
	}
	if int64(header.Length) != int64(len(b)) {
		return request{}, fmt.Errorf("%w: %d bytes where the header says %d", errMalformed, len(b), header.Length)
	}
	return request{InHeader: *header, bytes: b}, nil
}

// decode looks at b as the wire struct T, which has no pointers.
func decode[T any](b []byte) (*T, error) {
	if size := int(unsafe.Sizeof(*new(T))); len(b) < size {
		return nil, fmt.Errorf("%w: %d bytes where at least %d belong", errMalformed, len(b), size)
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// wire returns the bytes of the wire struct v, which has no pointers.
func wire[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// name returns the name that a LOOKUP asks for.
func (r request) name() (string, error) {
	name := r.bytes[inHeaderSize:]
	if len(name) == 0 || name[len(name)-1] != 0 {
		return "", fmt.Errorf("%w: a name without an end", errMalformed)
	}
	return string(name[:len(name)-1]), nil
}

// reply returns an answer without data beyond payload. Status is an errno, or
// the code of a notification where unique is 0.
func reply(unique uint64, status int32, payload ...[]byte) []byte {
	size := outHeaderSize
	for _, p := range payload {
		size += len(p)
	}
	b := make([]byte, outHeaderSize, size)
	putHeader(b, fuse.OutHeader{Length: uint32(size), Status: status, Unique: unique})
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

func putHeader(b []byte, h fuse.OutHeader) { copy(b, wire(&h)) }

// direntAlign is what the size of each entry of a READDIR answer is a multiple of.
const direntAlign = 8

// appendDirent appends one directory entry, unless b would grow beyond limit.
// Next is the offset from which to go on after this entry.
func appendDirent(b []byte, limit int, node, next uint64, kind uint32, name string) ([]byte, bool) {
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
