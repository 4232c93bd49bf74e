package index

import (
	"encoding/binary"
	"errors"
	"fmt"

	"lighter/format/chunk"
)

// An Extent says which chunk lies at an offset of the device. Bytes that no
// extent covers are zero: holes in files, and the rest of a file's last block.
type Extent struct {
	Offset int64 // on the device, in bytes
	Length uint32
	First  bool // it begins a file's data: reading ahead stops before it
	ID     chunk.ID
}

// End returns the offset behind the extent.
func (e Extent) End() int64 { return e.Offset + int64(e.Length) }

const flagFirst = 1

// append lays an extent out as docs/format.md says.
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

// decodePage reads the n extents of a page, which must lie in order, without
// overlap, from offset first on and below end. What is behind them is zero.
func decodePage(b []byte, n int, first, end int64) ([]Extent, error) {
	extents := make([]Extent, n)
	at := first
	for i := range extents {
		e, err := decodeExtent(b[i*extentSize:])
		if err != nil {
			return nil, err
		}
		// In this order nothing overflows: End may, of an offset near 2⁶³.
		if e.Offset < at || i == 0 && e.Offset != first || e.Offset > end || int64(e.Length) > end-e.Offset {
			return nil, fmt.Errorf("extent at %d+%d is out of order", e.Offset, e.Length)
		}
		at = e.End()
		extents[i] = e
	}
	if !allZero(b[n*extentSize:]) {
		return nil, errors.New("what is behind its extents is not zero")
	}
	return extents, nil
}
