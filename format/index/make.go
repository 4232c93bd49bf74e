package index

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/tree"
)

// Made is a new index without its metadata image, which is large and was written elsewhere.
type Made struct {
	Header
	table []byte
	pages []byte
}

// Make gives each file of t a place on the device and writes the metadata image to metadata. The
// rest of the index stays in memory: about 48 bytes an extent.
//
// The files are in the order of a depth-first walk, names sorted bytewise, each at a multiple of
// pageSize. Files of the same content share their place.
func Make(t *tree.Tree, metadata io.Writer) (*Made, error) {
	l, m, err := layOut(t)
	if err == nil {
		err = m.writeMetadata(t, l, metadata)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// MakeAt does what Make does, and writes the whole index to an empty file, each byte once.
func MakeAt(t *tree.Tree, file io.WriterAt) (*Made, error) {
	l, m, err := layOut(t)
	if err != nil {
		return nil, err
	}
	metadata := bufio.NewWriterSize(io.NewOffsetWriter(file, m.MapSize()), 1<<20)
	if err = m.writeMetadata(t, l, metadata); err == nil {
		err = metadata.Flush()
	}
	if err == nil {
		_, err = io.Copy(io.NewOffsetWriter(file, 0), m.withoutMetadata())
	}
	if err != nil {
		return nil, fmt.Errorf("write the index: %w", err)
	}
	return m, nil
}

// layOut gives each file of t a place on the device.
func layOut(t *tree.Tree) (*mapMaker, *Made, error) {
	l := newMapMaker()
	l.reserve(t.Root)
	if err := l.walk(t.Root); err != nil {
		return nil, nil, err
	}
	m, err := l.finish()
	return l, m, err
}

// writeMetadata writes the metadata image, and completes the header.
func (m *Made) writeMetadata(t *tree.Tree, l *mapMaker, to io.Writer) error {
	sum := sha256.New()
	size, err := erofs.Write(io.MultiWriter(to, sum), t, uint64(m.DeviceSize), func(n *tree.Node) uint64 {
		place, _ := l.place(n.Content.Extents)
		return uint64(place)
	})
	if err != nil {
		return fmt.Errorf("write the metadata image: %w", err)
	}
	m.MetadataSize = size
	m.Metadata = chunk.ID(sum.Sum(nil))
	return nil
}

// withoutMetadata reads the index up to its metadata image.
func (m *Made) withoutMetadata() io.Reader {
	padding := zeros[:m.pagesOffset()-headerSize-int64(len(m.table))]
	return io.MultiReader(bytes.NewReader(m.encode()), bytes.NewReader(m.table), bytes.NewReader(padding),
		bytes.NewReader(m.pages))
}

// Write writes the whole index to w. metadata reads the metadata image that Make wrote.
func (m *Made) Write(w io.Writer, metadata io.Reader) error {
	n, err := io.Copy(w, io.MultiReader(m.withoutMetadata(), metadata))
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	if n != m.Size() {
		return fmt.Errorf("write the index: %d bytes, want %d", n, m.Size())
	}
	return nil
}

// Refs calls fn for each extent in the order of the device.
func (m *Made) Refs(fn func(i int64, ref chunk.Ref) error) error {
	for i := range m.Extents {
		at := i/pageExtents*pageSize + i%pageExtents*extentSize
		length := binary.LittleEndian.Uint32(m.pages[at+8:])
		if err := fn(i, chunk.Ref{ID: chunk.ID(m.pages[at+16 : at+48]), Length: length}); err != nil {
			return err
		}
	}
	return nil
}

// mapMaker gives each distinct file its place on the device, and builds the pages of the extent
// map.
type mapMaker struct {
	header Header
	next   int64  // first free offset of the device
	pages  []byte // the last page is not padded yet
	table  []byte

	// The offsets of contents: singles has contents of exactly one chunk, by the chunk's ID; lists
	// has all other contents. One map for both would not do: the content of a file can be the very
	// bytes that keyOf hashes for another file's list, and both would have the same key. A chunk
	// that is only a part of files is in singles with the value partOnly, so that it is counted
	// once.
	singles map[chunk.ID]int64
	lists   map[listKey]int64
	linked  map[*tree.Node]struct{} // nodes with several names that the walk has met
}

// listKey is the SHA-256 of a list of chunks and holes. It is not stored.
type listKey [sha256.Size]byte

const partOnly = -1

func newMapMaker() *mapMaker {
	return &mapMaker{singles: map[chunk.ID]int64{}, lists: map[listKey]int64{}, linked: map[*tree.Node]struct{}{}}
}

// reserve allocates the pages at once: 50 MB for a million files, and growing would triple that.
func (l *mapMaker) reserve(root *tree.Node) {
	extents := 0
	var count func(dir *tree.Node)
	count = func(dir *tree.Node) {
		for _, child := range dir.Children() {
			if child.Node.IsDir() {
				count(child.Node)
			} else if l.first(child.Node) {
				extents += len(child.Node.Content.Extents)
			}
		}
	}
	count(root)
	clear(l.linked)
	pages := (extents + pageExtents - 1) / pageExtents
	l.pages = make([]byte, 0, pages*pageSize)
	l.table = make([]byte, 0, pages*pageEntrySize)
}

func (l *mapMaker) walk(dir *tree.Node) error {
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

// first reports whether the walk meets an inode for the first time.
func (l *mapMaker) first(n *tree.Node) bool {
	if n.Nlink < 2 {
		return true
	}
	_, again := l.linked[n]
	l.linked[n] = struct{}{}
	return !again
}

func (l *mapMaker) file(n *tree.Node) error {
	if !l.first(n) {
		return nil
	}
	l.header.Files++
	l.header.Bytes += n.Size
	if len(n.Content.Extents) == 0 {
		return nil // its data is in the metadata image
	}
	if _, known := l.place(n.Content.Extents); known {
		return nil
	}
	place := l.next
	if err := l.add(n); err != nil {
		return err
	}
	if id, single := onlyChunk(n.Content.Extents); single {
		l.singles[id] = place
	} else {
		l.lists[keyOf(n.Content.Extents)] = place
	}
	return nil
}

// place returns the offset of a content, if it has one already.
func (l *mapMaker) place(extents []tree.Extent) (place int64, known bool) {
	if id, single := onlyChunk(extents); single {
		place, known = l.singles[id]
		return place, known && place != partOnly
	}
	place, known = l.lists[keyOf(extents)]
	return place, known
}

func onlyChunk(extents []tree.Extent) (id chunk.ID, single bool) {
	return extents[0].ID, len(extents) == 1 && !extents[0].IsHole()
}

// add puts a new content after the others.
func (l *mapMaker) add(n *tree.Node) error {
	at := l.next
	first := true
	for _, e := range n.Content.Extents {
		if !e.IsHole() {
			if e.Length <= 0 || e.Length > chunk.MaxLength {
				return fmt.Errorf("chunk %s of %d bytes", e.ID.Short(), e.Length)
			}
			l.extent(Extent{Offset: at, Length: uint32(e.Length), First: first, ID: e.ID})
			first = false
			if _, seen := l.singles[e.ID]; !seen {
				l.singles[e.ID] = partOnly
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

// extent appends an extent to the last page, or to a new one if that is full.
func (l *mapMaker) extent(e Extent) {
	if l.header.Extents%pageExtents == 0 {
		l.closePage()
		l.table = binary.LittleEndian.AppendUint64(l.table, uint64(e.Offset))
		l.header.Pages++
	}
	l.pages = e.append(l.pages)
	l.header.Extents++
}

// closePage pads the last page with zeros and completes its entry in the table.
func (l *mapMaker) closePage() {
	if l.header.Pages == 0 {
		return
	}
	l.pages = append(l.pages, make([]byte, l.header.Pages*pageSize-int64(len(l.pages)))...)
	sum := sha256.Sum256(l.pages[len(l.pages)-pageSize:])
	l.table = append(l.table, sum[:]...)
}

func (l *mapMaker) finish() (*Made, error) {
	l.closePage()
	if l.header.Pages > maxPages {
		return nil, fmt.Errorf("an extent map of %d pages, the limit is %d", l.header.Pages, maxPages)
	}
	l.header.DeviceSize = l.next
	l.header.PageTable = sha256.Sum256(l.table)
	return &Made{Header: l.header, table: l.table, pages: l.pages}, nil
}

func keyOf(extents []tree.Extent) (key listKey) {
	sum := sha256.New()
	var length [8]byte
	for _, e := range extents {
		binary.LittleEndian.PutUint64(length[:], uint64(e.Length))
		sum.Write(e.ID[:])
		sum.Write(length[:])
	}
	sum.Sum(key[:0])
	return key
}
