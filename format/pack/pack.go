package pack

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"lighter/format/chunk"
)

const (
	// targetSize is the size in bytes at which a pack is full.
	targetSize = 16 << 20

	// Format is the number of the format of units and packs. It ends both magics.
	Format = 1

	packMagic  = "LTP" + digit
	packFooter = 12 // bytes
	maxUnits   = 1 << 16

	digit = string(rune('0' + Format))
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes one pack.
type Writer struct {
	w       io.Writer
	sum     hash.Hash
	lengths []byte
	size    int64
}

// NewWriter returns a writer of a pack to w.
func NewWriter(w io.Writer) *Writer {
	sum := sha256.New()
	return &Writer{w: io.MultiWriter(w, sum), sum: sum}
}

// Add appends an encoded unit and returns its number.
func (w *Writer) Add(unit []byte) (n uint32, err error) {
	n = uint32(len(w.lengths) / 4)
	if _, err := w.w.Write(unit); err != nil {
		return 0, fmt.Errorf("write unit %d: %w", n, err)
	}
	w.lengths = binary.LittleEndian.AppendUint32(w.lengths, uint32(len(unit)))
	w.size += int64(len(unit))
	return n, nil
}

// Units returns the number of units so far.
func (w *Writer) Units() int { return len(w.lengths) / 4 }

// Full reports whether the pack should be closed.
func (w *Writer) Full() bool { return w.size >= targetSize || w.Units() >= maxUnits }

// Close writes the table. It returns the pack's ID and its size in bytes. It does not close the
// underlying writer.
func (w *Writer) Close() (chunk.ID, int64, error) {
	tail := binary.LittleEndian.AppendUint32(w.lengths, crc32.Checksum(w.lengths, castagnoli))
	tail = binary.LittleEndian.AppendUint32(tail, uint32(w.Units()))
	tail = append(tail, packMagic...)
	if _, err := w.w.Write(tail); err != nil {
		return chunk.ID{}, 0, fmt.Errorf("write table of pack: %w", err)
	}
	return chunk.ID(w.sum.Sum(nil)), w.size + int64(len(tail)), nil
}

// Table has the positions of a pack's units.
type Table struct{ offsets []int64 }

// ReadTable reads the table of an untrusted pack of size bytes. It allocates at most a megabyte.
func ReadTable(r io.ReaderAt, size int64) (*Table, error) {
	var footer [packFooter]byte
	if size < packFooter {
		return nil, errors.New("read table of pack: it is too short")
	}
	if _, err := r.ReadAt(footer[:], size-packFooter); err != nil {
		return nil, fmt.Errorf("read table of pack: footer: %w", err)
	}
	n := binary.LittleEndian.Uint32(footer[4:])
	if string(footer[8:]) != packMagic || n > maxUnits || int64(n)*4+packFooter > size {
		return nil, errors.New("read table of pack: the footer is invalid")
	}
	lengths := make([]byte, 4*n)
	if _, err := r.ReadAt(lengths, size-packFooter-int64(len(lengths))); err != nil {
		return nil, fmt.Errorf("read table of pack: %w", err)
	}
	if crc32.Checksum(lengths, castagnoli) != binary.LittleEndian.Uint32(footer[:]) {
		return nil, errors.New("read table of pack: the checksum is wrong")
	}
	t := &Table{offsets: make([]int64, n+1)}
	for i := range n {
		length := binary.LittleEndian.Uint32(lengths[4*i:])
		if length == 0 || length > MaxStored {
			return nil, fmt.Errorf("read table of pack: unit %d has %d bytes", i, length)
		}
		t.offsets[i+1] = t.offsets[i] + int64(length)
	}
	if t.offsets[n] != size-packFooter-int64(len(lengths)) {
		return nil, errors.New("read table of pack: the units do not fill the pack")
	}
	return t, nil
}

// Units returns the number of units.
func (t *Table) Units() int { return len(t.offsets) - 1 }

// Unit returns the position of unit n in bytes. The error wraps chunk.ErrNotFound if there is no
// such unit.
func (t *Table) Unit(n uint32) (offset, length int64, err error) {
	if int64(n) >= int64(t.Units()) {
		return 0, 0, fmt.Errorf("unit %d of a pack of %d units: %w", n, t.Units(), chunk.ErrNotFound)
	}
	return t.offsets[n], t.offsets[n+1] - t.offsets[n], nil
}
