// Package pack encodes many chunks as one immutable object, a pack. Nodes fetch a pack in parts,
// its units. A unit lists its chunks, so that it can be read without the rest of the pack.
//
// The chunks of a unit are compressed together, as one zstd frame. So small files compress with
// their neighbours, and a node that fetches a unit for one chunk also gets the others.
// docs/decisions/units.md and bytes.md have the measurements.
//
// Callers decide which chunk is in which unit, and store the bytes. A Unit returns only chunks
// whose bytes match their IDs.
//
// Hazard: a unit's bytes depend on the version of the zstd library. Nothing that has to be
// reproducible, such as a tree ID, may depend on a pack's ID.
package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
)

const (
	// targetPlain is the number of plain bytes at which a unit is full. The chunk that reaches it
	// still belongs to the unit.
	targetPlain = 96 << 10

	// Bounds of each unit. They also bound the memory of a decoder.
	MaxPlain  = 4 << 20               // plain bytes
	MaxStored = MaxPlain + MaxPlain/8 // encoded bytes
	maxChunks = 1 << 16

	unitMagic  = "LTU" + digit
	unitHeader = 16 // bytes
	unitEntry  = chunk.Size + 4
)

// UnitBuilder collects the chunks of one unit. The zero value is ready to use.
type UnitBuilder struct {
	table []byte
	plain []byte
	n     int
}

// Add appends a chunk and returns its position in the unit, from 0. It copies plain.
func (b *UnitBuilder) Add(id chunk.ID, plain []byte) int {
	b.table = append(b.table, id[:]...)
	b.table = binary.LittleEndian.AppendUint32(b.table, uint32(len(plain)))
	b.plain = append(b.plain, plain...)
	b.n++
	return b.n - 1
}

// Len returns the number of chunks.
func (b *UnitBuilder) Len() int { return b.n }

// Full reports whether the unit should be encoded.
func (b *UnitBuilder) Full() bool { return len(b.plain) >= targetPlain || b.n >= maxChunks }

// Reset empties the builder and keeps its memory.
func (b *UnitBuilder) Reset() { b.table, b.plain, b.n = b.table[:0], b.plain[:0], 0 }

// Encode appends the encoded unit to dst.
func (b *UnitBuilder) Encode(dst []byte, enc *zstd.Encoder) []byte {
	dst, _ = b.EncodeWith(dst, func(dst, content []byte) ([]byte, error) { return enc.EncodeAll(content, dst), nil })
	return dst
}

// EncodeWith does what Encode does, but compresses with compressor, which appends content to dst as
// one zstd frame. The error is the compressor's.
func (b *UnitBuilder) EncodeWith(
	dst []byte, compressor func(dst, content []byte) ([]byte, error),
) (_ []byte, err error) {
	at := len(dst)
	dst = append(dst, unitMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(b.n))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.plain)))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = append(dst, b.table...)
	frame := len(dst)
	if dst, err = compressor(dst, b.plain); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(dst[at+12:], uint32(len(dst)-frame))
	return dst, nil
}

// Unit is a decoded unit. Its chunks are verified when they are read. It is safe for concurrent
// use.
type Unit struct {
	table    []byte
	plain    []byte
	ends     []uint32 // of the chunks in plain
	verified []atomic.Bool
}

var decoder = compress.UnitDecoder(MaxPlain)

// DecodeUnit decodes a unit of untrusted bytes. It allocates at most MaxPlain bytes plus about the
// length of b. It does not keep b.
func DecodeUnit(b []byte) (*Unit, error) {
	if len(b) < unitHeader || string(b[:4]) != unitMagic {
		return nil, errors.New("decode unit: wrong magic")
	}
	n := binary.LittleEndian.Uint32(b[4:])
	plain := binary.LittleEndian.Uint32(b[8:])
	frame := binary.LittleEndian.Uint32(b[12:])
	if n == 0 || n > maxChunks || plain > MaxPlain || len(b) > MaxStored {
		return nil, fmt.Errorf("decode unit: %d chunks and %d plain bytes in %d bytes exceed the bounds of the format",
			n, plain, len(b))
	}
	if want := unitHeader + uint64(n)*unitEntry + uint64(frame); want != uint64(len(b)) {
		return nil, fmt.Errorf("decode unit: it has %d bytes, its header says %d", len(b), want)
	}
	u := &Unit{table: bytes.Clone(b[unitHeader : unitHeader+int(n)*unitEntry]),
		ends: make([]uint32, n), verified: make([]atomic.Bool, n)}
	var end uint64
	for i := range u.ends {
		length := binary.LittleEndian.Uint32(u.table[i*unitEntry+chunk.Size:])
		end += uint64(length)
		if length == 0 || length > chunk.MaxLength || end > uint64(plain) {
			return nil, fmt.Errorf("decode unit: chunk %d has %d bytes", i, length)
		}
		u.ends[i] = uint32(end)
	}
	if end != uint64(plain) {
		return nil, fmt.Errorf("decode unit: its chunks have %d bytes, its header says %d", end, plain)
	}
	var err error
	if u.plain, err = decoder.DecodeAll(b[len(b)-int(frame):], make([]byte, 0, plain)); err != nil {
		return nil, fmt.Errorf("decode unit: decompress: %w", err)
	}
	if len(u.plain) != int(plain) {
		return nil, fmt.Errorf("decode unit: its frame has %d plain bytes, its header says %d", len(u.plain), plain)
	}
	return u, nil
}

// Memory returns the bytes of memory that a unit takes.
func (u *Unit) Memory() int64 {
	const end, verified = 4, 4
	return int64(len(u.plain) + len(u.table) + u.Len()*(end+verified))
}

// Len returns the number of chunks.
func (u *Unit) Len() int { return len(u.ends) }

// Ref returns the ID and the length of chunk i from the unit's table.
func (u *Unit) Ref(i int) chunk.Ref {
	return chunk.Ref{ID: chunk.ID(u.table[i*unitEntry : i*unitEntry+chunk.Size]), Length: u.ends[i] - u.start(i)}
}

func (u *Unit) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return u.ends[i-1]
}

// Lookup returns the chunk with that ID, as Chunk does. The error wraps chunk.ErrNotFound if the
// unit does not have it.
func (u *Unit) Lookup(id chunk.ID) ([]byte, error) {
	for i := range u.ends {
		if chunk.ID(u.table[i*unitEntry:i*unitEntry+chunk.Size]) == id {
			return u.Chunk(i)
		}
	}
	return nil, fmt.Errorf("chunk %s in the unit: %w", id.Short(), chunk.ErrNotFound)
}

// Chunk returns the plain bytes of chunk i, or a *chunk.InvalidError if they do not match its ID.
// The bytes belong to the unit and must not be changed.
func (u *Unit) Chunk(i int) ([]byte, error) {
	plain := u.plain[u.start(i):u.ends[i]:u.ends[i]]
	if u.verified[i].Load() {
		return plain, nil
	}
	if err := u.Ref(i).Check(plain); err != nil {
		return nil, err
	}
	u.verified[i].Store(true)
	return plain, nil
}
