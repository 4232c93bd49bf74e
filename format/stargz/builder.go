package stargz

import (
	"archive/tar"
	"fmt"
	"unsafe"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// The estimated memory of parts of a Layer in bytes, with what the allocator adds.
const (
	entryMemory  = int64(unsafe.Sizeof(tree.Entry{})) + 2*16
	extentMemory = int64(unsafe.Sizeof(tree.Extent{})) + 8
	partMemory   = int64(unsafe.Sizeof(part{})) + 64 // with its unit, and the map's entry
	xattrMemory  = int64(unsafe.Sizeof(tree.Xattr{})) + 16
)

// emptyDigest is the SHA-256 of no bytes.
var emptyDigest = chunk.Sum(nil)

// part is a run of a file's bytes in the blob.
type part struct {
	id     chunk.ID // zero: it needs no unit, and only ends the one before
	offset int64    // in the blob
	inner  int64    // in what is decompressed from there
	length int64    // of the plain bytes; 0: it needs no unit
	end    int64    // in the blob; 0: at the next part's offset at the latest
}

// builder makes a Layer of the rows of a table.
type builder struct {
	table   Table
	memory  int64
	entries []*tree.Entry
	parts   []part
	zeros   int64 // that were hashed
	file    file  // the last regular file
	marks   marks

	freeEntries block[tree.Entry]
	freeExtents block[tree.Extent]
}

// block has values that are allocated together, which is faster than one by one.
type block[T any] []T

// take returns a slice of one value.
func (b *block[T]) take() []T {
	if len(*b) == 0 {
		*b = make([]T, 128)
	}
	t := (*b)[:1:1]
	*b = (*b)[1:]
	return t
}

func newBuilder(t Table) *builder { return &builder{table: t} }

// keep counts memory.
func (b *builder) keep(bytes int64) error {
	if b.memory += bytes; b.memory > maxMemory {
		return &tree.LimitError{What: "bytes of entries, names, attributes and chunks", Limit: maxMemory}
	}
	return nil
}

// add adds a row.
func (b *builder) add(r *row) error {
	if r.Type == typeChunk {
		return b.addChunk(r)
	}
	if err := b.endFile(); err != nil {
		return err
	}
	e := &b.freeEntries.take()[0]
	if err := r.entry(e); err != nil {
		return err
	}
	size := entryMemory + int64(len(e.Name)+len(e.Linkname))
	for _, x := range e.Xattrs {
		size += xattrMemory + int64(len(x.Name)+len(x.Value))
	}
	if err := b.keep(size); err != nil {
		return err
	}
	isShown := !b.marks.add(b.table.Format, r, len(b.entries))
	if isShown {
		b.entries = append(b.entries, e)
	}
	b.file = file{name: r.Name, dropped: !isShown}
	if e.Type == tar.TypeReg {
		return b.beginFile(r, e)
	}
	return nil
}

// endFile checks that all chunks of the last file were added.
func (b *builder) endFile() error {
	if f := &b.file; f.at != f.size {
		return fmt.Errorf("the chunks of file %q have %d bytes of %d", shorten(f.name), f.at, f.size)
	}
	return nil
}

// finish returns the layer of all rows.
func (b *builder) finish() (*Layer, error) {
	if err := b.endFile(); err != nil {
		return nil, err
	}
	l := &Layer{entries: b.entries}
	var err error
	if l.units, err = makeUnits(b.table, b.parts); err != nil {
		return nil, err
	}
	l.prefetch = b.marks.prefetch(l.entries, l.units)
	return l, nil
}
