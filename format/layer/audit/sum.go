package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// Summed is a source that hashes the entries that are read from it. The IDs of chunks determine
// their bytes, so the sum of all entries stands for what a table says about a layer. Nodes keep
// sums on the disk: with another encoding, what they have verified is not known any more.
type Summed struct {
	from   tree.LayerSource
	sum    hash.Hash
	buffer []byte
}

// Sum returns a source of the same entries.
func Sum(from tree.LayerSource) *Summed { return &Summed{from: from, sum: sha256.New()} }

// ID returns the sum of the entries so far.
func (s *Summed) ID() chunk.ID { return chunk.ID(s.sum.Sum(nil)) }

// SumAll returns the sum of all entries of a source.
func SumAll(from tree.LayerSource) (chunk.ID, error) {
	s := Sum(from)
	for {
		if _, err := s.Next(); err == io.EOF {
			return s.ID(), nil
		} else if err != nil {
			return chunk.ID{}, err
		}
	}
}

// Next implements tree.LayerSource.
func (s *Summed) Next() (*tree.Entry, error) {
	e, err := s.from.Next()
	if err == nil {
		s.add(e)
	}
	return e, err
}

// add hashes an entry. Every field has a fixed length, or its length before it.
func (s *Summed) add(e *tree.Entry) {
	b := append(s.buffer[:0], e.Type)
	text := func(t string) { b = append(binary.AppendUvarint(b, uint64(len(t))), t...) }
	text(e.Name)
	text(e.Linkname)
	for _, n := range []int64{e.Mode, int64(e.UID), int64(e.GID), e.Mtime.Sec, int64(e.Mtime.Nsec), e.Major, e.Minor,
		e.Size, int64(len(e.Xattrs)), int64(len(e.Content.Extents))} {
		b = binary.AppendVarint(b, n)
	}
	for _, x := range e.Xattrs {
		text(x.Name)
		text(string(x.Value))
	}
	text(string(e.Content.Inline))
	for _, x := range e.Content.Extents {
		b = binary.AppendVarint(append(b, x.ID[:]...), x.Length)
	}
	s.sum.Write(b)
	s.buffer = b
}
