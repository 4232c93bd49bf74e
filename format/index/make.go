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
	l := layout{places: map[chunk.ID]int64{}, linked: map[*tree.Node]struct{}{}}
	l.reserve(t.Root)
	if err := l.walk(t.Root); err != nil {
		return nil, err
	}
	m := l.finish()
	sum := sha256.New()
	size, err := erofs.Write(io.MultiWriter(metadata, sum), t, uint64(m.DeviceSize), func(n *tree.Node) uint64 {
		return uint64(l.places[contentKey(n.Content.Extents)])
	})
	if err != nil {
		return nil, fmt.Errorf("write the metadata image: %w", err)
	}
	m.MetadataSize = size
	m.Metadata = chunk.ID(sum.Sum(nil))
	return m, nil
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

// layout gives each distinct file its place on the device, and writes the pages
// of the extent map on the way.
type layout struct {
	header Header
	next   int64  // first free offset of the device
	pages  []byte // the last one without the zeros behind its extents
	table  []byte

	// places says where a content begins, by its key. A chunk that is only a
	// part of files is there too, at partOnly, so that it is counted once.
	places map[chunk.ID]int64
	linked map[*tree.Node]struct{} // nodes with several names that were seen
}

const partOnly = -1

// reserve makes room for the pages at once: for a million files they are fifty
// megabytes, which growing would triple.
func (l *layout) reserve(root *tree.Node) {
	extents := 0
	var count func(dir *tree.Node)
	count = func(dir *tree.Node) {
		for _, child := range dir.Children() {
			if child.Node.IsDir() {
				count(child.Node)
			}
			extents += len(child.Node.Content.Extents)
		}
	}
	count(root)
	pages := (extents + PageExtents - 1) / PageExtents
	l.pages = make([]byte, 0, pages*PageSize)
	l.table = make([]byte, 0, pages*pageEntrySize)
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
	if n.Nlink > 1 {
		if _, again := l.linked[n]; again {
			return nil
		}
		l.linked[n] = struct{}{}
	}
	l.header.Files++
	l.header.Bytes += n.Size
	if len(n.Content.Extents) == 0 {
		return nil // it lies in the metadata image
	}
	key := contentKey(n.Content.Extents)
	if place, known := l.places[key]; known && place != partOnly {
		return nil
	}
	place := l.next
	if err := l.add(n); err != nil {
		return err
	}
	l.places[key] = place
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
			l.extent(Extent{Offset: at, Length: uint32(e.Length), First: first, ID: e.ID})
			first = false
			if _, seen := l.places[e.ID]; !seen {
				l.places[e.ID] = partOnly
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

// extent appends an extent to the pages, and starts a page with it if the last
// one is full.
func (l *layout) extent(e Extent) {
	if l.header.Extents%PageExtents == 0 {
		l.closePage()
		l.table = binary.LittleEndian.AppendUint64(l.table, uint64(e.Offset))
		l.header.Pages++
	}
	l.pages = e.append(l.pages)
	l.header.Extents++
}

// closePage fills the last page with zeros and completes its entry in the table:
// 8 bytes offset of its first extent, 32 SHA-256.
func (l *layout) closePage() {
	if l.header.Pages == 0 {
		return
	}
	l.pages = append(l.pages, make([]byte, l.header.Pages*PageSize-int64(len(l.pages)))...)
	sum := sha256.Sum256(l.pages[len(l.pages)-PageSize:])
	l.table = append(l.table, sum[:]...)
}

func (l *layout) finish() *Made {
	l.closePage()
	l.header.DeviceSize = l.next
	l.header.PageTable = sha256.Sum256(l.table)
	return &Made{Header: l.header, table: l.table, pages: l.pages}
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
