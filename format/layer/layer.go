// Package layer reads a layer of an image, as a registry has it, in parts that decode alone. Such a
// part is a unit, and the layer's blob serves as a pack: its digest is the pack's ID.
//
// A Table lists the units of one blob and the chunks in each of them. It is made of what formats
// for lazy pulling say about a layer (eStargz, zstd:chunked, SOCI), or by reading the layer once.
// A node or a registry keeps the table, and the blob stays as it is.
//
// A table is not trusted. A Unit returns a chunk only if the chunk's bytes match its ID. Some
// formats have no digests of parts as small as a chunk. Such chunks have derived IDs (Derive): the
// unit is verified as a whole, by a digest that the ID covers.
//
// Hazard: a derived ID is as good as the digest that it was derived from. Nothing can compute it
// from the chunk's bytes alone.
package layer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"lighter/format/chunk"
)

// Codec says how the bytes of a unit become plain bytes.
type Codec uint8

// The codecs.
const (
	Stored  Codec = iota + 1 // plain bytes
	Gzip                     // from the beginning of a gzip member (RFC 1952), with the members that follow
	Zstd                     // whole zstd frames (RFC 8878)
	Deflate                  // from a block inside a gzip member: Bits and Window say how to begin
)

// Seal says what Unit.Digest is the digest of.
type Seal uint8

// The seals.
const (
	Unsealed     Seal = iota // there is no digest: all chunks have digests as IDs
	SealedStored             // the SHA-256 of the stored bytes
	SealedPlain              // the SHA-256 of the plain bytes
)

const (
	// MaxPlain and MaxStored bound the plain and the stored bytes of a unit.
	MaxPlain  = 8 << 20
	MaxStored = 4_718_592
	// MaxChunks bounds the chunks of a unit.
	MaxChunks = 1 << 16
	// WindowSize is the most bytes that a Deflate unit needs of what precedes it (RFC 1951).
	WindowSize = 32 << 10
)

// Unit is a part of a blob that can be decoded alone.
type Unit struct {
	Offset int64 // in the blob, in bytes
	Stored int64 // bytes in the blob
	Codec  Codec
	Seal   Seal
	Digest chunk.ID // see Seal
	Bits   uint8    // Deflate: the highest bits of the first byte that belong to the block; 0: all of its bits
	Window []byte   // Deflate: the plain bytes before the unit; bytes that nothing refers to may be zero
	Chunks []Chunk  // ordered by Begin and Offset
}

// Chunk is a chunk in a unit. The chunks with the same Begin are a part of the unit: they are
// decoded together. A unit with a seal has one part.
type Chunk struct {
	ID     chunk.ID
	Begin  uint32 // where decoding begins, in the unit's stored bytes: a gzip member, a zstd frame
	Offset uint32 // in the plain bytes from there on
	Length uint32 // of the chunk, in bytes
}

// end returns where the chunk ends in the plain bytes of its part.
func (c *Chunk) end() int64 { return int64(c.Offset) + int64(c.Length) }

// compare compares the places of two chunks.
func (c Chunk) compare(other Chunk) int {
	return cmp.Or(cmp.Compare(c.Begin, other.Begin), cmp.Compare(c.Offset, other.Offset))
}

// parts calls fn for each part: its chunks first to end-1, and the number of its plain bytes. What
// else its stored bytes decode to does not count.
func (u *Unit) parts(fn func(first, end int, plain int64) error) error {
	for first := 0; first < len(u.Chunks); {
		end, plain := first, int64(0)
		for ; end < len(u.Chunks) && u.Chunks[end].Begin == u.Chunks[first].Begin; end++ {
			plain = max(plain, u.Chunks[end].end())
		}
		if err := fn(first, end, plain); err != nil {
			return err
		}
		first = end
	}
	return nil
}

// derived begins each derived ID. No digest begins so, except by accident: the chance is 2^-64.
const derived = "LGTRPART"

// IsDerived reports whether an ID was derived, so that it is not the SHA-256 of the chunk's bytes.
func IsDerived(id chunk.ID) bool { return string(id[:len(derived)]) == derived }

// Key is what the IDs of a unit's chunks are derived from, if they are no digests. It covers what
// their bytes depend on: the unit's digest and, if that is of the stored bytes, how they are
// decoded.
type Key chunk.ID

// Key returns the key of the unit, which must have a seal.
func (u *Unit) Key() Key {
	b := append([]byte{byte(u.Seal)}, u.Digest[:]...)
	if u.Seal == SealedStored {
		window := chunk.Sum(u.Window)
		b = append(append(b, byte(u.Codec), u.Bits), window[:]...)
	}
	return Key(chunk.Sum(b))
}

// Derive returns the ID of length bytes at an offset of the unit's plain bytes.
func (k Key) Derive(offset, length uint32) (id chunk.ID) {
	b := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(k[:], offset), length)
	sum := chunk.Sum(b)
	copy(id[copy(id[:], derived):], sum[:])
	return id
}

// check returns an error if the unit exceeds the bounds of the format, or contradicts itself.
func (u *Unit) check(blob int64) error {
	switch {
	case u.Offset < 0 || u.Stored < 1 || u.Stored > MaxStored || u.Offset > blob-u.Stored:
		return fmt.Errorf("%d bytes at %d of a blob of %d bytes: want at most %d bytes of the blob", u.Stored, u.Offset,
			blob, MaxStored)
	case u.Codec < Stored || u.Codec > Deflate:
		return fmt.Errorf("unknown codec %d", u.Codec)
	case u.Seal > SealedPlain || (u.Seal == Unsealed) != u.Digest.IsZero():
		return fmt.Errorf("seal %d with digest %s", u.Seal, u.Digest.Short())
	case len(u.Window) > WindowSize || u.Bits > 7 || u.Codec != Deflate && (u.Bits != 0 || len(u.Window) != 0):
		return fmt.Errorf("a window of %d bytes and %d bits for codec %d", len(u.Window), u.Bits, u.Codec)
	case len(u.Chunks) == 0 || len(u.Chunks) > MaxChunks:
		return fmt.Errorf("%d chunks: want 1 to %d", len(u.Chunks), MaxChunks)
	}
	whole := u.Seal != Unsealed || u.Codec == Stored || u.Codec == Deflate
	for i, c := range u.Chunks {
		switch {
		case c.ID.IsZero() || c.Length == 0 || c.Length > chunk.MaxLength:
			return fmt.Errorf("chunk %d has %d bytes and the ID %s", i, c.Length, c.ID.Short())
		case int64(c.Begin) >= u.Stored || whole && c.Begin != 0:
			return fmt.Errorf("chunk %d begins at %d of %d bytes", i, c.Begin, u.Stored)
		case i > 0 && c.compare(u.Chunks[i-1]) < 0:
			return fmt.Errorf("chunk %d begins before the previous one", i)
		case IsDerived(c.ID) && u.Seal == Unsealed:
			return fmt.Errorf("chunk %d has a derived ID, and the unit has no digest", i)
		}
	}
	return u.checkPlain()
}

// checkPlain checks the number of plain bytes.
func (u *Unit) checkPlain() error {
	total := int64(0)
	err := u.parts(func(_, _ int, plain int64) error { total += plain; return nil })
	switch {
	case err != nil:
		return err
	case total > MaxPlain:
		return fmt.Errorf("%d plain bytes: want at most %d", total, MaxPlain)
	case u.Codec == Stored && total > u.Stored:
		return fmt.Errorf("%d plain bytes in %d bytes that are not compressed", total, u.Stored)
	}
	return nil
}

// Batch has the chunks of a unit. They are verified when they are read. It is safe for concurrent
// use.
type Batch struct {
	unit     *Unit
	key      Key // of a unit with a seal
	parts    []part
	memory   int64
	verified []atomic.Bool
}

// part is a part of a unit: chunks that are decoded together.
type part struct {
	first int                    // the number of its first chunk
	plain func() ([]byte, error) // decodes it, at the first call
}

// Decode decodes the stored bytes of the unit. A unit of several parts is decoded part by part,
// when the batch is read, and the batch keeps stored. In all, at most MaxPlain bytes are allocated,
// and what the decoder of the codec needs. The error is a *chunk.InvalidError if the bytes are not
// those of the unit. If one of several parts has wrong bytes, only its chunks return such an error.
func (u *Unit) Decode(stored []byte) (*Batch, error) { return u.DecodeArriving(stored, nil) }

// DecodeArriving is Decode of bytes that still arrive; nil: all have arrived. It reads only those
// that have, and may return before the last ones have. If some do not arrive, their parts have
// errors for good, so the batch is of no use.
func (u *Unit) DecodeArriving(stored []byte, arrived Arrived) (*Batch, error) {
	b := &Batch{unit: u, verified: make([]atomic.Bool, len(u.Chunks))}
	err := b.divide(arrival{stored: stored, arrived: arrived})
	switch {
	case err != nil:
	case len(b.parts) == 1:
		_, err = b.parts[0].plain()
	default:
		b.memory += int64(cap(stored))
	}
	if err != nil {
		return nil, u.invalid(err)
	}
	return b, nil
}

func (u *Unit) invalid(err error) error {
	return &chunk.InvalidError{What: fmt.Sprintf("unit at %d", u.Offset), Err: err}
}

// divide divides the stored bytes of the unit into its parts.
func (b *Batch) divide(all arrival) error {
	u := b.unit
	if err := u.check(math.MaxInt64); err != nil {
		return err
	}
	if int64(len(all.stored)) != u.Stored {
		return fmt.Errorf("it has %d bytes, want %d", len(all.stored), u.Stored)
	}
	if u.Seal != Unsealed {
		b.key = u.Key()
	}
	return u.parts(func(first, end int, n int64) error {
		to := u.Stored
		if end < len(u.Chunks) {
			to = int64(u.Chunks[end].Begin)
		}
		own := all.part(int64(u.Chunks[first].Begin), to)
		b.parts = append(b.parts, part{first, sync.OnceValues(func() ([]byte, error) { return u.open(own, n) })})
		b.memory += n
		return nil
	})
}

// open decodes the first n plain bytes of a part, and compares them with the seal.
func (u *Unit) open(from arrival, n int64) ([]byte, error) {
	plain, err := u.plain(from, n)
	if u.Seal == SealedStored { // such a unit has one part
		all, failed := from.all()
		if failed != nil {
			return nil, failed
		}
		if sum := chunk.Sum(all); sum != u.Digest { // then this is why it cannot be decoded
			return nil, fmt.Errorf("its digest is %s", sum.Short())
		}
	}
	if err == nil && u.Seal == SealedPlain && chunk.Sum(plain) != u.Digest {
		err = fmt.Errorf("its plain bytes have the digest %s", chunk.Sum(plain).Short())
	}
	return plain, err
}

// plain decodes the first n plain bytes.
func (u *Unit) plain(from arrival, n int64) ([]byte, error) {
	switch u.Codec {
	case Gzip:
		return gunzip(from.reader(), n)
	case Deflate:
		return u.inflate(from.reader(), n)
	}
	all, err := from.all()
	switch {
	case err != nil:
		return nil, err
	case u.Codec == Stored:
		return bytes.Clone(all[:n]), nil
	case u.Codec == Zstd:
		return unzstd(all, n)
	}
	return nil, errors.New("its codec is not known")
}

// Len returns the number of chunks.
func (b *Batch) Len() int { return len(b.unit.Chunks) }

// Ref returns the ID and the length of chunk i.
func (b *Batch) Ref(i int) chunk.Ref {
	return chunk.Ref{ID: b.unit.Chunks[i].ID, Length: b.unit.Chunks[i].Length}
}

// Memory returns the bytes of memory that the batch takes.
func (b *Batch) Memory() int64 {
	const perChunk = chunk.Size + 3*4 + 4
	const perPart = 128
	return b.memory + int64(len(b.unit.Window)+len(b.unit.Chunks)*perChunk+len(b.parts)*perPart)
}

// Lookup returns the chunk with that ID, as Chunk does. The error wraps chunk.ErrNotFound if the
// unit does not have it.
func (b *Batch) Lookup(id chunk.ID) ([]byte, error) {
	for i, c := range b.unit.Chunks {
		if c.ID == id {
			return b.Chunk(i)
		}
	}
	return nil, fmt.Errorf("chunk %s in the unit: %w", id.Short(), chunk.ErrNotFound)
}

// Chunk returns the plain bytes of chunk i, or a *chunk.InvalidError if they do not match its ID.
// The bytes belong to the batch and must not be changed.
func (b *Batch) Chunk(i int) ([]byte, error) {
	c := &b.unit.Chunks[i]
	in, found := slices.BinarySearchFunc(b.parts, i, func(p part, i int) int { return cmp.Compare(p.first, i) })
	if !found {
		in-- // the part that begins before the chunk
	}
	all, err := b.parts[in].plain()
	if err != nil {
		return nil, b.unit.invalid(err)
	}
	plain := all[c.Offset:c.end():c.end()]
	if b.verified[i].Load() {
		return plain, nil
	}
	if IsDerived(c.ID) { // the unit was verified; the table may say wrong what the chunk is
		if b.key.Derive(c.Offset, c.Length) != c.ID {
			return nil, &chunk.InvalidError{What: "chunk " + c.ID.Short(), Err: errors.New("the unit does not have it")}
		}
	} else if err := b.Ref(i).Check(plain); err != nil {
		return nil, err
	}
	b.verified[i].Store(true)
	return plain, nil
}
