// Package index promises that one name, the tree ID, stands for everything
// that a node must know of a chain before it can mount it: the metadata image
// and the extent map. The same tree gives the same index, byte for byte, on any
// machine and with any version of any library, and nobody can change a byte of
// it and keep the name.
//
// An index is a header, a page table, the pages of the extent map, and the
// metadata image; docs/format.md has the bytes. The tree ID is the SHA-256 of the
// header, which holds the digests of the metadata image and of the page table, as
// that holds those of the pages. So each part can be verified alone: the metadata
// image while it arrives, a page when a fault needs it.
// docs/decisions/tree-id.md says why the tree ID is not simply the digest of
// all bytes.
//
// The package also holds what travels beside an index: Locations (where the
// chunks lie now, a hint) and Statement (who says which chain a tree belongs
// to). It refuses to know paths, networks and packs' contents.
package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"lighter/format/chunk"
	"lighter/format/erofs"
)

// Format is the number of the format that this package reads and writes: of
// the splitting rule, the metadata image's layout and the index itself, which
// decide the tree ID together.
const Format = 1

const (
	// headerSize is the length of the header in bytes.
	headerSize = 256
	// pageSize is the length of a page of the extent map in bytes.
	pageSize = 4096
	// pageExtents is the number of extents that a page holds.
	pageExtents = pageSize / extentSize

	extentSize    = 48
	pageEntrySize = 40
	headerMagic   = "LIGHTER\x00"
	maxPages      = 1 << 20                // some 5 TB of chunks, and 40 MiB of page table, which a node has in memory
	maxDevice     = (1<<32 - 1) * pageSize // what EROFS can say of a device
)

// Header is the first part of an index.
type Header struct {
	Metadata       chunk.ID // SHA-256 of the metadata image
	MetadataSize   int64    // in bytes, a multiple of pageSize
	PageTable      chunk.ID // SHA-256 of the page table
	Pages          int64    // number of pages
	Extents        int64    // number of extents
	DeviceSize     int64    // in bytes, a multiple of pageSize
	Files          int64    // regular files of the tree, each inode counted once
	Bytes          int64    // sum of the sizes of those files, in bytes
	DistinctChunks int64    // chunks, each counted once
	DistinctBytes  int64    // sum of their plain lengths, in bytes
}

// encode lays the header out as docs/format.md says.
func (h *Header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, headerMagic...)
	b = binary.LittleEndian.AppendUint32(b, Format)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = append(b, h.Metadata[:]...)
	b = append(b, h.PageTable[:]...)
	for _, n := range h.numbers() {
		b = binary.LittleEndian.AppendUint64(b, uint64(*n))
	}
	return b[:headerSize]
}

func (h *Header) numbers() [8]*int64 {
	return [8]*int64{&h.MetadataSize, &h.Pages, &h.Extents, &h.DeviceSize,
		&h.Files, &h.Bytes, &h.DistinctChunks, &h.DistinctBytes}
}

// decodeHeader reads a header and checks that it does not contradict itself.
func decodeHeader(b []byte) (Header, error) {
	var h Header
	if len(b) != headerSize || string(b[:8]) != headerMagic {
		return h, errors.New("not an index")
	}
	if f := binary.LittleEndian.Uint32(b[8:]); f != Format {
		return h, fmt.Errorf("index of format %d, this version reads format %d", f, Format)
	}
	copy(h.Metadata[:], b[16:])
	copy(h.PageTable[:], b[48:])
	for i, n := range h.numbers() {
		*n = int64(binary.LittleEndian.Uint64(b[80+8*i:]))
		if *n < 0 {
			return h, errors.New("a number in the index header is out of range")
		}
	}
	switch {
	case !bytes.Equal(h.encode(), b):
		return h, errors.New("the index header has bytes set that format 1 leaves zero")
	case h.Pages > maxPages || h.Pages != (h.Extents+pageExtents-1)/pageExtents:
		return h, fmt.Errorf("an index of %d pages and %d extents is out of bounds", h.Pages, h.Extents)
	case h.MetadataSize < 2*pageSize || h.MetadataSize > erofs.MaxSize || h.MetadataSize%pageSize != 0:
		return h, fmt.Errorf("a metadata image of %d bytes is out of bounds", h.MetadataSize)
	case h.DeviceSize > maxDevice || h.DeviceSize%pageSize != 0:
		return h, fmt.Errorf("a device of %d bytes is out of bounds", h.DeviceSize)
	}
	return h, nil
}

// ID returns the tree ID.
func (h *Header) ID() chunk.ID { return sha256.Sum256(h.encode()) }

// MapSize returns the length in bytes of the index up to the metadata image:
// header, page table and pages.
func (h *Header) MapSize() int64 {
	return roundUp(headerSize+h.Pages*pageEntrySize) + h.Pages*pageSize
}

// Size returns the length of the whole index in bytes.
func (h *Header) Size() int64 { return h.MapSize() + h.MetadataSize }

// pagesOffset is where the first page lies. Pages are aligned, so that reading
// one from a disk costs one block.
func (h *Header) pagesOffset() int64 { return roundUp(headerSize + h.Pages*pageEntrySize) }

func roundUp(n int64) int64 { return (n + pageSize - 1) / pageSize * pageSize }
