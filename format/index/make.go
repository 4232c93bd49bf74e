package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/tree"
)

// Made is an index in the making: all of it but the metadata image, which is
// large and went to where the caller wanted it.
type Made struct {
	Header
	table []byte
	pages []byte
}

// Make lays the files of t out on the device and writes the metadata image to
// metadata. The rest of the index stays in memory: 48 bytes a chunk.
//
// The files lie in the order of a depth-first walk, names sorted bytewise, each
// at a multiple of PageSize; files of the same content share their place.
func Make(t *tree.Tree, metadata io.Writer) (*Made, error) {
	l := layout{places: map[chunk.ID]int64{}, chunks: map[chunk.ID]struct{}{}, nodes: map[*tree.Node]int64{}}
	if err := l.walk(t.Root); err != nil {
		return nil, err
	}
	m := &Made{Header: l.header}
	m.DeviceSize = l.next
	m.Extents = int64(len(l.extents) / extentSize)
	m.encodePages(l.extents)

	sum := sha256.New()
	size, err := erofs.Write(io.MultiWriter(metadata, sum), t, uint64(m.DeviceSize), func(n *tree.Node) uint64 {
		return uint64(l.nodes[n])
	})
	if err != nil {
		return nil, fmt.Errorf("write the metadata image: %w", err)
	}
	m.MetadataSize = size
	m.Metadata = chunk.ID(sum.Sum(nil))
	return m, nil
}

// encodePages cuts the extents, laid out one behind the other, into pages and
// makes their table: 8 bytes offset of the page's first extent, 32 SHA-256 of
// the page.
func (m *Made) encodePages(extents []byte) {
	const perPage = PageExtents * extentSize
	m.Pages = (m.Extents + PageExtents - 1) / PageExtents
	m.pages = make([]byte, 0, m.Pages*PageSize)
	m.table = make([]byte, 0, m.Pages*pageEntrySize)
	for len(extents) > 0 {
		n := min(len(extents), perPage)
		at := len(m.pages)
		m.pages = append(m.pages, extents[:n]...)
		m.pages = append(m.pages, make([]byte, PageSize-n)...)
		sum := sha256.Sum256(m.pages[at:])
		m.table = append(m.table, extents[:8]...)
		m.table = append(m.table, sum[:]...)
		extents = extents[n:]
	}
	m.PageTable = sha256.Sum256(m.table)
}

// Write writes the whole index to w. metadata reads back what Make wrote.
func (m *Made) Write(w io.Writer, metadata io.Reader) error {
	padding := make([]byte, m.pagesOffset()-HeaderSize-int64(len(m.table)))
	parts := io.MultiReader(bytes.NewReader(m.encode()), bytes.NewReader(m.table),
		bytes.NewReader(padding), bytes.NewReader(m.pages), metadata)
	n, err := io.Copy(w, parts)
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	if n != m.Size() {
		return fmt.Errorf("write the index: %d bytes where %d belong", n, m.Size())
	}
	return nil
}

// Refs calls fn for each extent in the order of the device.
func (m *Made) Refs(fn func(i int64, ref chunk.Ref) error) error {
	for i := range m.Extents {
		at := i/PageExtents*PageSize + i%PageExtents*extentSize
		length := binary.LittleEndian.Uint32(m.pages[at+8:])
		if err := fn(i, chunk.Ref{ID: chunk.ID(m.pages[at+16 : at+48]), Length: length}); err != nil {
			return err
		}
	}
	return nil
}

// layout gives each distinct file its place on the device.
type layout struct {
	header  Header
	next    int64                   // first free offset of the device
	extents []byte                  // encoded, in order
	places  map[chunk.ID]int64      // content → offset
	nodes   map[*tree.Node]int64    // every file that lies on the device
	chunks  map[chunk.ID]struct{}   // to count them once
	inline  map[*tree.Node]struct{} // inline files with several names that were counted
}

func (l *layout) walk(dir *tree.Node) error {
	for _, child := range dir.Children() {
		switch {
		case child.Node.IsDir():
			if err := l.walk(child.Node); err != nil {
				return err
			}
		case child.Node.IsRegular():
			if err := l.file(child.Node); err != nil {
				return fmt.Errorf("%q: %w", child.Name, err)
			}
		}
	}
	return nil
}

func (l *layout) file(n *tree.Node) error {
	if len(n.Content.Extents) == 0 {
		if n.Nlink > 1 {
			if _, again := l.inline[n]; again {
				return nil
			}
			if l.inline == nil {
				l.inline = map[*tree.Node]struct{}{}
			}
			l.inline[n] = struct{}{}
		}
		l.header.Files++
		l.header.Bytes += n.Size
		return nil
	}
	if _, again := l.nodes[n]; again {
		return nil
	}
	l.header.Files++
	l.header.Bytes += n.Size
	key := contentKey(n.Content.Extents)
	place, known := l.places[key]
	if !known {
		place = l.next
		if err := l.add(n); err != nil {
			return err
		}
		l.places[key] = place
	}
	l.nodes[n] = place
	return nil
}

// add puts a file that is not there yet behind the others.
func (l *layout) add(n *tree.Node) error {
	at := l.next
	first := true
	for _, e := range n.Content.Extents {
		if !e.IsHole() {
			if e.Length <= 0 || e.Length > chunk.MaxLength {
				return fmt.Errorf("chunk %s of %d bytes", e.ID.Short(), e.Length)
			}
			l.extents = Extent{Offset: at, Length: uint32(e.Length), First: first, ID: e.ID}.append(l.extents)
			first = false
			if _, seen := l.chunks[e.ID]; !seen {
				l.chunks[e.ID] = struct{}{}
				l.header.DistinctChunks++
				l.header.DistinctBytes += e.Length
			}
		}
		at += e.Length
	}
	if at-l.next != n.Size {
		return fmt.Errorf("its extents add up to %d bytes of %d", at-l.next, n.Size)
	}
	l.next = roundUp(at)
	return nil
}

// contentKey names a file's content. It stays within this process: only
// equality counts.
func contentKey(extents []tree.Extent) chunk.ID {
	if len(extents) == 1 && !extents[0].IsHole() {
		return extents[0].ID
	}
	sum := sha256.New()
	var length [8]byte
	for _, e := range extents {
		binary.LittleEndian.PutUint64(length[:], uint64(e.Length))
		sum.Write(e.ID[:])
		sum.Write(length[:])
	}
	return chunk.ID(sum.Sum(nil))
}
