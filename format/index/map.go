package index

import (
	"encoding/binary"
	"fmt"
	"io"
	"sort"

	"lighter/format/chunk"
)

// Map is the extent map of an index on the disk. It has the page table in memory (40 bytes for 85
// extents), and shares a cache of pages with other maps. Each page is verified when it is read from
// the disk, so a damaged page causes an error and never wrong bytes. It is safe for concurrent use.
type Map struct {
	Header
	r      io.ReaderAt
	table  []byte
	pages  *Pages
	number uint64 // of this map, in the cache
}

// OpenMap opens the map that Receive wrote, and verifies that it belongs to tree id. pages is the
// cache of decoded pages.
func OpenMap(r io.ReaderAt, id chunk.ID, pages *Pages) (*Map, error) {
	h, err := ReceiveHeader(io.NewSectionReader(r, 0, headerSize), id)
	if err != nil {
		return nil, err
	}
	table, err := readPart(io.NewSectionReader(r, headerSize, h.Pages*pageEntrySize), h.Pages*pageEntrySize,
		h.PageTable, "page table")
	if err != nil {
		return nil, err
	}
	return &Map{Header: h, r: r, table: table, pages: pages, number: pages.newestMap.Add(1)}, nil
}

// Extent returns extent i, from 0.
func (m *Map) Extent(i int64) (Extent, error) {
	if i < 0 || i >= m.Extents {
		return Extent{}, fmt.Errorf("extent %d of %d: %w", i, m.Extents, chunk.ErrNotFound)
	}
	page, err := m.page(i / pageExtents)
	if err != nil {
		return Extent{}, err
	}
	return page[i%pageExtents], nil
}

// Refs calls fn for each extent in the order of the device, until it returns an error.
func (m *Map) Refs(fn func(i int64, ref chunk.Ref) error) error {
	for i := range m.Extents {
		x, err := m.Extent(i)
		if err == nil {
			err = fn(i, chunk.Ref{ID: x.ID, Length: x.Length})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Numbers returns the number of the first extent of each chunk, about 60 bytes each.
func (m *Map) Numbers() (map[chunk.ID]int64, error) {
	all := make(map[chunk.ID]int64, m.Extents)
	err := m.Refs(func(i int64, ref chunk.Ref) error {
		if _, known := all[ref.ID]; !known {
			all[ref.ID] = i
		}
		return nil
	})
	return all, err
}

// Find returns the number of the first extent that ends after offset: the extent that covers
// offset, or else the next extent. It returns Extents if there is no such extent.
func (m *Map) Find(offset int64) (int64, error) {
	// p is the last page that starts at or before offset. No extent of an earlier page ends after
	// offset.
	p := int64(sort.Search(int(m.Pages), func(p int) bool {
		return int64(binary.LittleEndian.Uint64(m.table[p*pageEntrySize:])) > offset
	})) - 1
	if p < 0 {
		return 0, nil
	}
	page, err := m.page(p)
	if err != nil {
		return 0, err
	}
	i := sort.Search(len(page), func(i int) bool { return page[i].End() > offset })
	return p*pageExtents + int64(i), nil
}

// Range calls fn for the extents that overlap the device range [from, to), in order, until fn
// returns false. i is the extent's number.
func (m *Map) Range(from, to int64, fn func(i int64, x Extent) bool) error {
	i, err := m.Find(from)
	if err != nil {
		return err
	}
	for ; i < m.Extents; i++ {
		x, err := m.Extent(i)
		if err != nil {
			return err
		}
		if x.Offset >= to || !fn(i, x) {
			return nil
		}
	}
	return nil
}

// Verify reads and verifies all pages from the disk. It does not use the cache of pages.
func (m *Map) Verify() error {
	for p := range m.Pages {
		if _, err := m.read(p); err != nil {
			return err
		}
	}
	return nil
}

func (m *Map) page(p int64) ([]Extent, error) {
	if extents := m.pages.get(m.number, p); extents != nil {
		return extents, nil
	}
	extents, err := m.read(p)
	if err == nil {
		m.pages.put(m.number, p, extents)
	}
	return extents, err
}

func (m *Map) read(p int64) ([]Extent, error) {
	b := make([]byte, pageSize)
	if _, err := m.r.ReadAt(b, m.pagesOffset()+p*pageSize); err != nil {
		return nil, fmt.Errorf("read page %d of the extent map: %w", p, noEOF(err))
	}
	return m.decodePage(b, m.table, p)
}
