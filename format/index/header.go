// Package index reads and writes indexes. An index is what a node needs to mount a tree: the
// metadata image and the extent map. Its name, the tree ID, covers each byte of it. The same tree
// gives the same index, byte for byte, on any machine and with any version of any library.
//
// An index has a header, a page table, the pages of the extent map, and the metadata image;
// docs/format.md has the bytes. The tree ID is the SHA-256 of the header. The header has the
// digests of the metadata image and of the page table, and the page table has those of the pages.
// So each part can be verified alone: the metadata image while it arrives, a page when a fault
// needs it. docs/decisions/tree-id.md says why the tree ID is not the digest of all bytes.
//
// The package also has what a hub sends with an index: Locations (the units of the chunks, a hint)
// and the signed Statement and ImageStatement. It knows no paths, networks or contents of packs.
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

// Format is the number of the format that this package reads and writes. It covers everything that
// the tree ID depends on: how files are split, the metadata image and the index itself.
const Format = 1

const (
	headerMagic = "LIGHTER\x00"

	// Sizes in bytes.
	headerSize    = 256                    // of the header
	pageSize      = 4096                   // of a page of the extent map
	pageEntrySize = 40                     // of an entry of the page table
	extentSize    = 48                     // of an extent in a page
	maxDevice     = (1<<32 - 1) * pageSize // of a device: EROFS's limit

	pageExtents = pageSize / extentSize // extents of a full page
	// maxPages allows 89 million extents, 5.8 TB if chunks have 64 KiB on average. A node has the
	// page table in memory: 40 MiB for maxPages.
	maxPages = 1 << 20
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
	Bytes          int64    // sum of the sizes of those files
	DistinctChunks int64    // chunks, each counted once
	DistinctBytes  int64    // sum of their plain lengths
}

// encode returns the header's bytes.
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

// decodeHeader decodes a header and checks that its numbers are consistent.
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
		return h, errors.New("the index header has bytes that format 1 reserves as zero")
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

// MapSize returns the size in bytes of the index without the metadata image: header, page table and
// pages.
func (h *Header) MapSize() int64 {
	return h.pagesOffset() + h.Pages*pageSize
}

// Size returns the size in bytes of the whole index.
func (h *Header) Size() int64 { return h.MapSize() + h.MetadataSize }

// pagesOffset returns the offset of the first page. Pages are aligned, so that a disk reads one
// block for each.
func (h *Header) pagesOffset() int64 { return roundUp(headerSize + h.Pages*pageEntrySize) }

func roundUp(n int64) int64 { return (n + pageSize - 1) / pageSize * pageSize }
