package stargz

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// MaxChunk bounds the plain bytes of a chunk, as a chunk is verified as a whole before its first
// byte is used. It is twice eStargz' default of 4 MiB. Of 850 MB of files of Debian 12, the largest
// chunk by containers/storage has 3.2 MB, and 99 % have less than 0.3 MB. But its splitting has no
// maximum: a run of equal bytes that are not zero is one chunk, and so is a file of zeros. (The
// latter is recognized by its digest.)
const MaxChunk = 8 << 20

// maxZeros bounds the zeros of a table that are hashed, in bytes: about two seconds.
const maxZeros = 2 << 30

// file is the regular file whose rows are being added.
type file struct {
	entry   *tree.Entry
	name    string
	size    int64    // as in the table
	at      int64    // end of its last chunk
	end     int64    // EndOffset of its first row
	digest  chunk.ID // of the whole file; zero: the table has none
	dropped bool     // it is no part of the layer
}

// beginFile adds the first row of a regular file, which is its first chunk, too.
func (b *builder) beginFile(r *row, e *tree.Entry) error {
	f := &b.file
	f.entry, f.size, f.end, f.dropped = e, r.Size, r.EndOffset, f.dropped || e.Size == 0
	var err error
	if r.Digest != "" {
		if f.digest, err = parseDigest(r.Digest); err != nil {
			return err
		}
	}
	if f.size == 0 {
		if !f.digest.IsZero() && f.digest != emptyDigest {
			return errors.New("the digest of an empty file is that of another file")
		}
		return nil
	}
	return b.addPart(r)
}

// addChunk adds a row of a further chunk.
func (b *builder) addChunk(r *row) error {
	f := &b.file
	switch {
	case f.entry == nil:
		return errors.New("a chunk of no file")
	case r.Name != "" && cleanName(r.Name) != cleanName(f.name):
		return fmt.Errorf("a chunk of another file than %q", shorten(f.name))
	case f.at == f.size:
		return fmt.Errorf("a chunk behind the end of a file of %d bytes", f.size)
	}
	return b.addPart(r)
}

// addPart adds the chunk of a row to the last file.
func (b *builder) addPart(r *row) error {
	f := &b.file
	length := r.ChunkSize
	if length == 0 {
		length = f.size - f.at
	}
	switch {
	case r.ChunkOffset != f.at:
		return fmt.Errorf("a chunk at offset %d of the file, want it at %d", r.ChunkOffset, f.at)
	case length < 0 || length > f.size-f.at:
		return fmt.Errorf("a chunk of %d bytes at offset %d of a file of %d", length, f.at, f.size)
	case r.Offset < 0 || r.InnerOffset < 0 || r.Offset >= b.table.DataEnd:
		return fmt.Errorf("a chunk at offset %d in the layer, and %d inside, whose files end at %d",
			r.Offset, r.InnerOffset, b.table.DataEnd)
	}
	p := part{offset: r.Offset, inner: r.InnerOffset, length: length}
	isWhole := length == f.size
	if f.at += length; f.at == f.size {
		p.end = f.end
	}
	if r.ChunkType == zeros {
		p.length = 0
		return b.keepPart(p, tree.Extent{Length: length})
	}
	if r.ChunkType != "" {
		return fmt.Errorf("a chunk of type %q", shorten(r.ChunkType))
	}
	var err error
	if p.id, err = f.chunkID(r, isWhole); err != nil {
		return err
	}
	if length > MaxChunk {
		if b.isHole(p.id, length) {
			p.length = 0
			return b.keepPart(p, tree.Extent{Length: length})
		}
		return fmt.Errorf("a chunk of %d bytes, the limit is %d", length, MaxChunk)
	}
	return b.keepPart(p, tree.Extent{ID: p.id, Length: length})
}

// isHole reports whether a large chunk consists of zeros. containers/storage marks the holes in a
// file, but not a file that is nothing else.
func (b *builder) isHole(id chunk.ID, length int64) bool {
	if length > maxZeros-b.zeros {
		return false
	}
	b.zeros += length
	sum := sha256.New()
	block := make([]byte, 64<<10)
	for left := length; left > 0; left -= int64(len(block)) {
		sum.Write(block[:min(left, int64(len(block)))])
	}
	return chunk.ID(sum.Sum(nil)) == id
}

// chunkID returns the digest of a row's chunk. isWhole says that the chunk is the whole file.
func (f *file) chunkID(r *row, isWhole bool) (chunk.ID, error) {
	id := chunk.ID{}
	switch {
	case r.ChunkDigest == "":
	case r.ChunkDigest == r.Digest && r.Type != typeChunk: // the file's, which is parsed already
		id = f.digest
	default:
		var err error
		if id, err = parseDigest(r.ChunkDigest); err != nil {
			return chunk.ID{}, fmt.Errorf("chunk: %w", err)
		}
	}
	switch {
	case !isWhole && id.IsZero():
		return chunk.ID{}, errors.New("a chunk without a digest")
	case !isWhole || f.digest.IsZero() || f.digest == id:
	case id.IsZero():
		id = f.digest
	default:
		return chunk.ID{}, fmt.Errorf("the file's digest is %s, that of its only chunk is %s",
			f.digest.Short(), id.Short())
	}
	if id.IsZero() {
		return chunk.ID{}, errors.New("a file without a digest")
	}
	return id, nil
}

// keepPart adds an extent to the last file, and its place in the blob.
func (b *builder) keepPart(p part, x tree.Extent) error {
	if err := b.keep(partMemory + extentMemory); err != nil {
		return err
	}
	if b.file.dropped {
		p.id, p.length = chunk.ID{}, 0
	} else if extents := &b.file.entry.Content.Extents; *extents == nil {
		*extents = b.freeExtents.take()
		(*extents)[0] = x
	} else {
		*extents = append(*extents, x)
	}
	if len(b.parts) == cap(b.parts) {
		b.parts = slices.Grow(b.parts, len(b.parts)+1) // append would grow it by a quarter, and copy more often
	}
	b.parts = append(b.parts, p)
	return nil
}
