// Package survey reads a layer's blob once and finds where each of its chunks lies in it, so that a
// node can read the layer from its registry, in parts, without a change to the image.
//
// A Survey has the layer table (package layer) of the blob. Its units begin where decoding can
// begin: at checkpoints of gzip, at frames of zstd, and anywhere in an uncompressed tar. The
// entries and chunks are those that a hub makes of the layer, so they lead to the same tree ID.
//
// The package promises:
//   - It reads the blob once, from its beginning to its end.
//   - A chunk is in one unit only, and its ID is the SHA-256 of its bytes. Units have no seal.
//   - It needs about 8 MiB of memory and, for zstd, a window of up to 16 MiB, and the table: 44
//     bytes for a different chunk and 100 for finding its unit, and 68 for a unit with its window,
//     compressed.
//
// It refuses layers of which a part cannot be decoded alone, with a NoEntryError: a zstd frame or a
// deflate block that is too large, or a sparse file, whose chunks are not in the blob in one piece.
//
// It verifies nothing: the caller compares the digests in a Survey with those of the image.
package survey

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/layer"
	"lighter/format/tree"
)

// Survey is what was found out about a layer.
type Survey struct {
	// Table is the layer table of the blob.
	Table *layer.Builder
	// Format says how the blob is compressed: what its first bytes say. A hub does not decompress
	// a layer whose media type says that it is not compressed, so the caller compares both.
	Format compress.LayerFormat
	// Blob and Size are the SHA-256 of the blob and its size in bytes.
	Blob chunk.ID
	Size int64
	// DiffID and Plain are the SHA-256 of the tar stream and its size in bytes.
	DiffID chunk.ID
	Plain  int64

	// Units are the numbers of the units, by chunk.
	Units map[chunk.ID]uint32
}

// A NoEntryError says why a layer cannot be read in parts. The layer may be valid nonetheless.
type NoEntryError struct {
	Offset int64  // of the tar stream: the part that cannot be read alone
	Why    string // what is wrong with it
}

func (e *NoEntryError) Error() string {
	return fmt.Sprintf("the layer cannot be entered for byte %d of its tar stream: %s", e.Offset, e.Why)
}

// Read reads a layer's blob to its end. It calls emit for each entry, in order, as tree.Scan does.
// If seen is not nil, Read calls it for each different chunk, with bytes that match the ID and are
// valid only during the call. The error wraps what tree.Scan returns, a NoEntryError, or an error
// of the decoder.
func Read(
	blob io.Reader, limits tree.Limits, emit func(*tree.Entry) error, seen func(id chunk.ID, plain []byte),
) (*Survey, error) {
	in := &summer{r: blob, sum: sha256.New()}
	buffered := bufio.NewReaderSize(in, 64<<10)
	magic, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("survey a layer: %w", err)
	}
	s := &Survey{Table: layer.NewReading(), Format: compress.FormatOf(magic), Units: map[chunk.ID]uint32{}}
	r := &reader{seen: seen, units: unitMaker{survey: s}}
	var from stream
	switch s.Format {
	case compress.Gzip:
		from, r.units.codec = newMembers(buffered), layer.Deflate
	case compress.Zstd:
		from, r.units.codec = newFrames(buffered), layer.Zstd
	default:
		from, r.units.codec = plainStream{buffered}, layer.Stored
	}
	r.stream, r.plain = from, &summer{r: from, sum: sha256.New()}
	err = tree.Scan(r, limits, r.content, emit)
	if err == nil {
		err = r.finish()
	}
	if err == nil {
		s.Blob, s.Size = in.digest(), in.n
		s.DiffID, s.Plain = r.plain.digest(), r.plain.n
		err = s.Table.SetBlob(s.Blob, s.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("survey a layer: %w", err)
	}
	return s, nil
}

// summer counts and sums what is read through it.
type summer struct {
	r   io.Reader
	n   int64
	sum hash.Hash // SHA-256
}

func (s *summer) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.sum.Write(p[:n])
	return n, err
}

func (s *summer) digest() chunk.ID { return chunk.ID(s.sum.Sum(nil)) }
