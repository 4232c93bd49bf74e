package index

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
)

// The compact form of an index lacks what follows from the rest: the page table, and nearly all
// offsets. The metadata image has its compact form, too (package erofs). docs/format.md has the
// bytes, docs/decisions/attached.md the sizes.
const (
	compactFirst    = 1 // the extent has flagFirst
	compactDistance = 2 // a distance follows
	compactShift    = 2 // the length is above these two bits
)

// compactBase returns the offset that an extent after one with this end has if nothing else is
// said: files begin at blocks.
func compactBase(end int64, first bool) int64 {
	if first {
		return roundUp(end)
	}
	return end
}

// WriteCompact writes the compact form of the map's index. metadata reads the metadata image. The
// error may be that the extents are not laid out as Make does.
func (m *Map) WriteCompact(w io.Writer, metadata io.Reader) error {
	out := bufio.NewWriterSize(w, 64<<10)
	b, end := m.encode(), int64(0)
	for i := range m.Extents {
		x, err := m.Extent(i)
		if err != nil {
			return err
		}
		base := compactBase(end, x.First)
		if x.Offset < base {
			return fmt.Errorf("write the compact form of an index: extent %d begins at %d, before %d", i, x.Offset,
				base)
		}
		n := uint64(x.Length) << compactShift
		if x.First {
			n |= compactFirst
		}
		if x.Offset > base {
			n |= compactDistance
		}
		b = binary.AppendUvarint(b, n)
		if x.Offset > base {
			b = binary.AppendUvarint(b, uint64(x.Offset-base))
		}
		if _, err := out.Write(append(b, x.ID[:]...)); err != nil {
			return err
		}
		b, end = b[:0], x.End()
	}
	_, err := out.Write(b) // the header, if there are no extents
	if err == nil {
		err = erofs.WriteCompact(out, metadata, m.MetadataSize)
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write the compact form of an index: %w", noEOF(err))
	}
	return nil
}

// Expand reads the compact form of index id from r, verifies it, and writes the whole index to w,
// which must be empty. The index may not be used if Expand returns an error.
//
// It allocates a few kilobytes and the page table, and never trusts a length that it has not
// verified. The error is a *chunk.InvalidError if bytes are wrong, and that of r if some lack.
func Expand(w io.WriterAt, r io.Reader, id chunk.ID) error {
	in := bufio.NewReaderSize(r, 64<<10)
	h, err := ReceiveHeader(in, id)
	if err != nil {
		return err
	}
	table, err := h.expandPages(io.NewOffsetWriter(w, h.pagesOffset()), in)
	if err != nil {
		return err
	}
	if got := chunk.Sum(table); got != h.PageTable {
		return &chunk.InvalidError{What: "page table", Err: fmt.Errorf("its digest is %s", got.Short())}
	}
	padding := zeros[:h.pagesOffset()-headerSize-int64(len(table))]
	if _, err := w.WriteAt(bytes.Join([][]byte{h.encode(), table, padding}, nil), 0); err != nil {
		return fmt.Errorf("store the index: %w", err)
	}
	metadata := bufio.NewWriterSize(io.NewOffsetWriter(w, h.MapSize()), 256<<10)
	if err := h.receiveMetadata(erofs.Expand(in, h.MetadataSize), metadata); err != nil {
		return err
	}
	if err := metadata.Flush(); err != nil {
		return fmt.Errorf("store the index: %w", err)
	}
	return nil
}

// expandPages reads the extents, writes their pages, and returns the page table, not verified yet.
func (h *Header) expandPages(w io.Writer, in *bufio.Reader) (table []byte, err error) {
	pages := bufio.NewWriterSize(w, 256<<10)
	page, end := make([]byte, 0, pageSize), int64(0)
	for p := range h.Pages {
		page = page[:0]
		for i := p * pageExtents; i < min(h.Extents, (p+1)*pageExtents); i++ {
			x, err := h.readCompact(in, end)
			if err != nil {
				return nil, fmt.Errorf("read extent %d of the index: %w", i, err)
			}
			page, end = x.append(page), x.End()
		}
		table = append(table, page[:8]...) // the offset of its first extent
		page = append(page, zeros[:pageSize-len(page)]...)
		sum := chunk.Sum(page)
		table = append(table, sum[:]...)
		if _, err := pages.Write(page); err != nil {
			return nil, fmt.Errorf("store the extent map: %w", err)
		}
	}
	if err := pages.Flush(); err != nil {
		return nil, fmt.Errorf("store the extent map: %w", err)
	}
	return table, nil
}

// readCompact reads an extent after one with this end. The extent is within the device.
func (h *Header) readCompact(in *bufio.Reader, end int64) (x Extent, err error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return x, noEOF(err)
	}
	x.First = n&compactFirst != 0
	x.Offset = compactBase(end, x.First)
	distance := uint64(0)
	if n&compactDistance != 0 {
		if distance, err = binary.ReadUvarint(in); err != nil {
			return x, noEOF(err)
		}
	}
	if _, err := io.ReadFull(in, x.ID[:]); err != nil {
		return x, noEOF(err)
	}
	length, room := n>>compactShift, h.DeviceSize-x.Offset
	if length == 0 || length > chunk.MaxLength || room < 0 || distance > uint64(room) ||
		length > uint64(room)-distance || x.ID.IsZero() {
		return x, &chunk.InvalidError{What: "extent", Err: errors.New("it is out of bounds")}
	}
	x.Offset, x.Length = x.Offset+int64(distance), uint32(length)
	return x, nil
}
