package layer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"lighter/format/chunk"
	"lighter/format/index"
)

// The compact form of a table is for readers that have the index of a tree. It has the numbers of
// the index's extents instead of chunk IDs, which are three quarters of a table and do not
// compress. docs/format.md has its bytes.
const compactMagic = "LGTRLYC" + string(rune(Format))

// WriteCompact writes the compact form of a table. extents has the number of an extent for each
// chunk of the tree (index.Map.Numbers). The error may be that the table is not one that was made
// by reading the layer (package survey): a unit has a seal, or several parts.
func (t *Table) WriteCompact(w io.Writer, extents map[chunk.ID]int64) error {
	out := bufio.NewWriterSize(w, 64<<10)
	b := append([]byte(compactMagic), t.blob[:]...)
	b = binary.AppendUvarint(b, uint64(t.size))
	var last place
	for n := range uint32(t.units) {
		u, err := t.Unit(n)
		if err == nil {
			b, err = last.append(b, u, extents)
		}
		if err == nil {
			_, err = out.Write(b)
		}
		if err != nil {
			return fmt.Errorf("write the compact form of the table of layer %s: %w", t.blob.Short(), err)
		}
		b = b[:0]
	}
	if _, err := out.Write(append(b, 0)); err != nil { // no further unit
		return err
	}
	return out.Flush()
}

// notInTree is the number of a chunk that is not of the tree: its ID and length follow. Such chunks
// are in the form, too, so that a layer has the same units for all trees: a reader of a unit knows
// the layer, and not the tree.
const notInTree = -1

// place is what the next unit of a compact table is relative to.
type place struct {
	unit int64 // the offset of the last unit
	next int64 // the number after that of the last chunk's extent
}

// append appends the compact form of a unit, which has at least one chunk.
func (p *place) append(b []byte, u *Unit, extents map[chunk.ID]int64) ([]byte, error) {
	var chunks []byte
	end, next := int64(0), p.next
	for _, c := range u.Chunks {
		if u.Seal != Unsealed || c.Begin != 0 {
			return nil, fmt.Errorf("the unit at %d has a seal, or several parts", u.Offset)
		}
		extent, found := extents[c.ID]
		if !found {
			extent = notInTree
		}
		chunks = binary.AppendVarint(chunks, extent-next)
		chunks = binary.AppendVarint(chunks, int64(c.Offset)-end)
		if end = c.end(); found {
			next = extent + 1
		} else {
			chunks = binary.AppendUvarint(append(chunks, c.ID[:]...), uint64(c.Length))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(u.Chunks)))
	b = binary.AppendUvarint(b, uint64(u.Offset-p.unit))
	b = binary.AppendUvarint(b, uint64(u.Stored))
	b = append(b, byte(u.Codec), u.Bits)
	b = appendWindow(b, u.Window)
	p.unit, p.next = u.Offset, next
	return append(b, chunks...), nil
}

// appendWindow appends a window: its length, the lengths of its runs of zeros and of other bytes in
// turn, and then these other bytes. Most of a window is zero.
func appendWindow(b, window []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(window)))
	var others []byte
	for i := 0; i < len(window); {
		from := i
		for i < len(window) && window[i] == 0 {
			i++
		}
		b = binary.AppendUvarint(b, uint64(i-from))
		from = i
		for i < len(window) && window[i] != 0 {
			i++
		}
		b = binary.AppendUvarint(b, uint64(i-from))
		others = append(others, window[from:i]...)
	}
	return append(b, others...)
}

// ReadCompact reads the untrusted compact form of a table to its end. extents is the map of the
// index that it refers to. The error says what is wrong, for example that the index does not have
// an extent; or it is that of r or of the map. The table is in memory.
func ReadCompact(r io.Reader, extents *index.Map) (*Builder, error) {
	c := &compactReader{in: bufio.NewReaderSize(r, 64<<10), extents: extents}
	b, err := c.table()
	if err != nil {
		return nil, fmt.Errorf("read the compact form of a layer table: %w", err)
	}
	return b, nil
}

type compactReader struct {
	in      *bufio.Reader
	extents *index.Map
	last    place
}

func (c *compactReader) table() (*Builder, error) {
	var head [len(compactMagic) + chunk.Size]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, noEOF(err)
	}
	if string(head[:len(compactMagic)]) != compactMagic {
		return nil, errors.New("wrong magic")
	}
	size, err := c.number(math.MaxInt64)
	if err != nil {
		return nil, err
	}
	b := NewBuilder(chunk.ID(head[len(compactMagic):]), size)
	for {
		count, err := c.number(MaxChunks)
		if err != nil {
			return nil, err
		}
		if count == 0 {
			break
		}
		u, err := c.unit(int(count))
		if err != nil {
			return nil, err
		}
		if _, err := b.Add(u); err != nil {
			return nil, err
		}
	}
	if _, err := c.in.ReadByte(); err == nil {
		return nil, errors.New("it has bytes after its end")
	} else if err != io.EOF {
		return nil, err
	}
	return b, nil
}

// unit reads a unit of count chunks.
func (c *compactReader) unit(count int) (u Unit, err error) {
	distance, err := c.number(math.MaxInt64 - c.last.unit)
	if err != nil {
		return u, err
	}
	u.Offset = c.last.unit + distance
	c.last.unit = u.Offset
	if u.Stored, err = c.number(MaxStored); err != nil {
		return u, err
	}
	var codec [2]byte
	if _, err := io.ReadFull(c.in, codec[:]); err != nil {
		return u, noEOF(err)
	}
	u.Codec, u.Bits = Codec(codec[0]), codec[1]
	if u.Window, err = c.window(); err != nil {
		return u, err
	}
	end := int64(0)
	for range count {
		next, err := c.chunk(end)
		if err != nil {
			return u, err
		}
		u.Chunks, end = append(u.Chunks, next), next.end()
	}
	return u, nil
}

// window reads a window.
func (c *compactReader) window() ([]byte, error) {
	length, err := c.number(WindowSize)
	if err != nil || length == 0 {
		return nil, err
	}
	window := make([]byte, length)
	var runs [][]byte
	for rest := window; len(rest) > 0; {
		zeros, err := c.number(int64(len(rest)))
		if err != nil {
			return nil, err
		}
		rest = rest[zeros:]
		others, err := c.number(int64(len(rest)))
		if err != nil {
			return nil, err
		}
		if zeros+others == 0 {
			return nil, errors.New("a part of a window is empty")
		}
		runs, rest = append(runs, rest[:others]), rest[others:]
	}
	for _, run := range runs {
		if _, err := io.ReadFull(c.in, run); err != nil {
			return nil, noEOF(err)
		}
	}
	return window, nil
}

// chunk reads a chunk after one with this end.
func (c *compactReader) chunk(end int64) (next Chunk, err error) {
	extent, err := binary.ReadVarint(c.in)
	if err != nil {
		return next, noEOF(err)
	}
	distance, err := binary.ReadVarint(c.in)
	if err != nil {
		return next, noEOF(err)
	}
	// Both sums wrap around at most once, and are then below 0.
	extent, offset := c.last.next+extent, end+distance
	if extent == notInTree && offset >= 0 && offset <= math.MaxUint32 {
		next.Offset = uint32(offset)
		if _, err := io.ReadFull(c.in, next.ID[:]); err != nil {
			return next, noEOF(err)
		}
		length, err := c.number(chunk.MaxLength)
		next.Length = uint32(length)
		return next, err
	}
	if extent < 0 || extent >= c.extents.Extents || offset < 0 || offset > math.MaxUint32 {
		return next, fmt.Errorf("a chunk at %d of extent %d of %d", offset, extent, c.extents.Extents)
	}
	x, err := c.extents.Extent(extent)
	if err != nil {
		return next, err
	}
	c.last.next = extent + 1
	return Chunk{ID: x.ID, Offset: uint32(offset), Length: x.Length}, nil
}

// number reads a number from 0 to limit.
func (c *compactReader) number(limit int64) (int64, error) {
	n, err := binary.ReadUvarint(c.in)
	if err != nil {
		return 0, noEOF(err)
	}
	if n > uint64(limit) {
		return 0, fmt.Errorf("a number is %d: want at most %d", n, limit)
	}
	return int64(n), nil
}

// noEOF returns the error of a read that may have ended inside the table.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
