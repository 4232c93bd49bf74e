package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"lighter/format/chunk"
)

// An Extent is the place of a chunk on the device. Bytes that no extent covers are zero: holes in
// files, and the rest of each file's last block.
type Extent struct {
	Offset int64 // on the device, in bytes
	Length uint32
	First  bool // the extent begins a file's data; read-ahead stops before it
	ID     chunk.ID
}

// End returns the offset of the extent's end.
func (e Extent) End() int64 { return e.Offset + int64(e.Length) }

const flagFirst = 1

// append appends the extent's bytes.
func (e Extent) append(b []byte) []byte {
	var flags uint32
	if e.First {
		flags = flagFirst
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Offset))
	b = binary.LittleEndian.AppendUint32(b, e.Length)
	b = binary.LittleEndian.AppendUint32(b, flags)
	return append(b, e.ID[:]...)
}

func decodeExtent(b []byte) (Extent, error) {
	e := Extent{
		Offset: int64(binary.LittleEndian.Uint64(b)),
		Length: binary.LittleEndian.Uint32(b[8:]),
		ID:     chunk.ID(b[16:48]),
	}
	flags := binary.LittleEndian.Uint32(b[12:])
	e.First = flags&flagFirst != 0
	if e.Offset < 0 || e.Length == 0 || e.Length > chunk.MaxLength || flags&^flagFirst != 0 || e.ID.IsZero() {
		return e, errors.New("an extent is out of bounds")
	}
	return e, nil
}

// decodePage decodes the n extents of a page. They must be in order and not overlap. The first one
// must begin at the device offset first, and none may exceed the device offset end. The rest of the
// page must be zero.
func decodePage(b []byte, n int, first, end int64) ([]Extent, error) {
	extents := make([]Extent, n)
	at := first
	for i := range extents {
		e, err := decodeExtent(b[i*extentSize:])
		if err != nil {
			return nil, err
		}
		// Not e.End(), which overflows for an offset near 2⁶³.
		if e.Offset < at || i == 0 && e.Offset != first || e.Offset > end || int64(e.Length) > end-e.Offset {
			return nil, fmt.Errorf("extent at %d+%d is out of order", e.Offset, e.Length)
		}
		at = e.End()
		extents[i] = e
	}
	if rest := b[n*extentSize:]; !bytes.Equal(rest, zeros[:len(rest)]) {
		return nil, errors.New("the bytes after its extents are not zero")
	}
	return extents, nil
}
