package soci

import (
	"encoding/binary"
	"fmt"

	"lighter/format/deflate"
)

// SOCI's zinfo of gzip: the number of checkpoints (int32) and the span size (int64), then the
// checkpoints: offset in the layer and in the plain bytes (int64), bits (byte), window. Numbers are
// little-endian. Windows at less than 32 KiB have zeros in front.
//
// Version 2 has all checkpoints. Version 1 leaves out the first one, and has no other mark.
const (
	zinfoHeader     = 4 + 8
	checkpointStart = 8 + 8 + 1
	checkpointSize  = checkpointStart + deflate.WindowSize

	gzipHeaderSize = 10   // without optional parts
	maxExpansion   = 1032 // plain bytes of a byte of deflate: 258 for 2 bits
)

// readGzip reads the zinfo of a gzip layer, and makes n spans.
func (t *Table) readGzip(zinfo []byte, n int) error {
	if len(zinfo) < zinfoHeader {
		return fmt.Errorf("a zinfo of %d bytes", len(zinfo))
	}
	count := int64(int32(binary.LittleEndian.Uint32(zinfo)))
	t.SpanSize = int64(binary.LittleEndian.Uint64(zinfo[4:]))
	if count != int64(n) || t.SpanSize < 0 {
		return fmt.Errorf("a zinfo with %d checkpoints and a span size of %d, for %d spans", count, t.SpanSize, n)
	}
	stored := zinfo[zinfoHeader:]
	var points []deflate.Checkpoint
	switch int64(len(stored)) {
	case count * checkpointSize:
	case (count - 1) * checkpointSize:
		points = append(points, deflate.Checkpoint{In: gzipHeaderSize})
	default:
		return fmt.Errorf("a zinfo of %d bytes for %d checkpoints", len(zinfo), count)
	}
	for ; len(stored) > 0; stored = stored[checkpointSize:] {
		c := deflate.Checkpoint{In: int64(binary.LittleEndian.Uint64(stored)),
			Out: int64(binary.LittleEndian.Uint64(stored[8:])), Bits: stored[16]}
		if c.Out < 0 {
			return fmt.Errorf("a checkpoint at plain byte %d", c.Out)
		}
		c.Window = stored[checkpointSize-min(c.Out, deflate.WindowSize) : checkpointSize]
		points = append(points, c)
	}
	return t.makeSpans(points)
}

// makeSpans makes the spans of checkpoints. They cover the archive, as the last one ends with it.
func (t *Table) makeSpans(points []deflate.Checkpoint) error {
	if first := points[0]; first.In < gzipHeaderSize || first.Bits != 0 || first.Out != 0 {
		return fmt.Errorf("the first checkpoint is at byte %d, %d bits, plain byte %d", first.In, first.Bits, first.Out)
	}
	t.spans = make([]Span, len(points))
	for i, c := range points {
		// SOCI counts plain bytes up to the end of the archive. Its checkpoints may come behind it,
		// if the archive is padded.
		next := deflate.Checkpoint{In: t.CompressedSize, Out: max(t.PlainSize, c.Out)}
		if i+1 < len(points) {
			next = points[i+1]
		}
		s := Span{Compressed: Range{c.Start(), next.In}, Plain: Range{c.Out, next.Out}, point: c,
			compression: Gzip, last: i+1 == len(points)}
		switch {
		case c.Bits > 7:
			return fmt.Errorf("checkpoint %d has %d bits", i, c.Bits)
		case next.In <= c.In || next.Out < c.Out:
			return fmt.Errorf("checkpoint %d at byte %d, plain byte %d, is not before the next, at %d and %d", i, c.In,
				c.Out, next.In, next.Out)
		case s.Plain.Len()/maxExpansion > s.Compressed.Len():
			return fmt.Errorf("span %d has %d plain bytes in %d, which is impossible", i, s.Plain.Len(),
				s.Compressed.Len())
		}
		t.spans[i] = s
	}
	return nil
}

// Fields of the zinfo of plain tars.
const (
	tarVersion = iota
	tarSpanSize
	tarSize
)

const tarZinfoVersion = 2

// readTar reads the zinfo of a plain tar, and makes n spans.
func (t *Table) readTar(zinfo []byte, n int) error {
	b := newBuffer(zinfo)
	root := b.root()
	version, size := root.int32(tarVersion), root.int64(tarSize)
	t.SpanSize = root.int64(tarSpanSize)
	switch {
	case b.err != nil:
		return fmt.Errorf("zinfo: %w", b.err)
	case version != tarZinfoVersion:
		return fmt.Errorf("a zinfo of version %d, want %d", version, tarZinfoVersion)
	case size != t.CompressedSize || t.PlainSize > size:
		return fmt.Errorf("a zinfo of %d bytes for a layer of %d with an archive of %d", size, t.CompressedSize,
			t.PlainSize)
	case t.SpanSize <= 0:
		return fmt.Errorf("spans of %d bytes", t.SpanSize)
	case size == 0 || (size-1)/t.SpanSize+1 != int64(n):
		return fmt.Errorf("%d spans of %d bytes for a layer of %d", n, t.SpanSize, size)
	}
	t.spans = make([]Span, n)
	for i := range t.spans {
		start := int64(i) * t.SpanSize
		part := Range{start, start + min(t.SpanSize, size-start)}
		t.spans[i] = Span{Compressed: part, Plain: part, compression: Uncompressed, last: i+1 == n}
	}
	return nil
}
