package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// Sum returns the sum of all entries of a source. The IDs of chunks determine their bytes, so the
// sum stands for what a table says about a layer. Nodes keep sums on the disk: with another
// encoding, what they have verified is not known any more.
func Sum(from tree.LayerSource) (chunk.ID, error) {
	s := summer{sum: sha256.New()}
	for {
		switch e, err := from.Next(); err {
		case nil:
			s.add(e)
		case io.EOF:
			return chunk.ID(s.sum.Sum(nil)), nil
		default:
			return chunk.ID{}, err
		}
	}
}

type summer struct {
	sum    hash.Hash
	buffer []byte
}

// add hashes an entry. Every field has a fixed length, or its length before it.
func (s *summer) add(e *tree.Entry) {
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
