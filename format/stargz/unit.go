package stargz

import "lighter/format/chunk"

// unit is a part of a layer's blob that decompresses by itself: it begins with a gzip member or a
// zstd frame. Several chunks of small files may share a member.
type unit struct {
	offset int64 // of its stored bytes in the blob
	// length is the number of stored bytes that suffice to decode the unit's chunks, at most
	// maxUnitStored. The part of the blob up to the next unit may be longer.
	length int64

	format Format
	// chunks has at least 1, in order, without overlaps. From the first one's begin to the last
	// one's end, with tar headers between them, are at most MaxChunk plain bytes.
	chunks []place
}

// place is the place of a chunk in what is decompressed from a unit.
type place struct {
	id     chunk.ID
	at     int64
	length uint32
}

func (p place) end() int64 { return p.at + int64(p.length) }
