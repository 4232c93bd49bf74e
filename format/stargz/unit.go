package stargz

import "lighter/format/chunk"

// Unit is a part of a layer's blob that decompresses by itself: it begins with a gzip member or a
// zstd frame. Several chunks of small files may share a member.
type Unit struct {
	Offset int64 // of its stored bytes in the blob
	// Length is the number of stored bytes that suffice to decode the unit's chunks, at most
	// MaxUnitStored. The part of the blob up to the next unit may be longer.
	Length int64

	format Format
	chunks []place // in order, without overlaps
}

// place is the place of a chunk in what is decompressed from a unit.
type place struct {
	id     chunk.ID
	at     int64
	length uint32
}

func (p place) end() int64 { return p.at + int64(p.length) }

// Len returns the number of chunks, at least 1.
func (u Unit) Len() int { return len(u.chunks) }

// Ref returns ID and length of chunk i.
func (u Unit) Ref(i int) chunk.Ref { return chunk.Ref{ID: u.chunks[i].id, Length: u.chunks[i].length} }

// Plain returns the number of plain bytes that Decode keeps: those from the first chunk's begin to
// the last one's end, with tar headers between them. It is at most MaxChunk.
func (u Unit) Plain() int64 { return u.chunks[len(u.chunks)-1].end() - u.chunks[0].at }
