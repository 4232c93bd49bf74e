// Package pack promises that many chunks can lie in one immutable object and
// travel as a few: a pack is cut into units when it is made, and a unit says
// itself which chunks it holds, so whoever has a unit needs nothing else.
//
// The chunks of a unit are compressed together, as one zstd frame: small files
// compress with their neighbours, and a node that asks for one gets them all. What
// looks like x86 code is made to compress better before. docs/decisions/units.md and
// bytes.md have the measurements.
//
// It refuses to decide which chunk goes where, to store anything, and to hand
// out a byte that is not what its ID says.
//
// Hazard: a unit's bytes depend on the version of the zstd library. Nothing
// that has to be reproduced (tree IDs above all) may depend on a pack's ID.
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
	// targetPlain is the number of plain bytes at which a unit is full. The
	// chunk that crosses it still belongs to the unit.
	targetPlain = 96 << 10

	// MaxPlain bounds the plain bytes of any unit, MaxStored its encoded
	// length, maxChunks the number of its chunks: what a decoder allocates.
	MaxPlain  = 4 << 20
	MaxStored = MaxPlain + MaxPlain/8
	maxChunks = 1 << 16

	unitMagic  = "LTU1"
	unitHeader = 16
	unitFlags  = 7 // where they are: a byte
	flagTurned = 1 // the frame holds what turn made of the plain bytes
	unitEntry  = chunk.Size + 4
)

// UnitBuilder collects the chunks of one unit. The zero value is ready to use.
type UnitBuilder struct {
	table  []byte
	plain  []byte
	turned []byte // of Encode
	n      int
}

// Add appends a chunk, whose bytes are copied, and returns its place in the
// unit, from 0.
func (b *UnitBuilder) Add(id chunk.ID, plain []byte) int {
	b.table = append(b.table, id[:]...)
	b.table = binary.LittleEndian.AppendUint32(b.table, uint32(len(plain)))
	b.plain = append(b.plain, plain...)
	b.n++
	return b.n - 1
}

// Len returns the number of chunks.
func (b *UnitBuilder) Len() int { return b.n }

// Full tells whether the unit should be closed.
func (b *UnitBuilder) Full() bool { return len(b.plain) >= targetPlain || b.n >= maxChunks }

// Reset empties the builder and keeps its memory.
func (b *UnitBuilder) Reset() { b.table, b.plain, b.n = b.table[:0], b.plain[:0], 0 }

// Encode appends the unit to dst, as docs/format.md says.
func (b *UnitBuilder) Encode(dst []byte, enc *zstd.Encoder) []byte {
	dst, _ = b.EncodeWith(dst, func(dst, content []byte) ([]byte, error) { return enc.EncodeAll(content, dst), nil })
	return dst
}

// EncodeWith is Encode with another compressor, which appends the content to dst as one
// zstd frame. Its error is returned.
func (b *UnitBuilder) EncodeWith(dst []byte, compressor func(dst, content []byte) ([]byte, error)) (_ []byte, err error) {
	content, flags := b.plain, uint32(0)
	b.turned = append(b.turned[:0], b.plain...)
	if turn(b.turned) {
		content, flags = b.turned, flagTurned
	}
	at := len(dst)
	dst = append(dst, unitMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(b.n)|flags<<24)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.plain)))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = append(dst, b.table...)
	frame := len(dst)
	if dst, err = compressor(dst, content); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(dst[at+12:], uint32(len(dst)-frame))
	return dst, nil
}

// Unit is a decoded unit: the plain bytes of its chunks, none of them verified
// before Chunk does it.
type Unit struct {
	table []byte
	plain []byte
	ends  []uint32
	good  []atomic.Bool // chunks that were verified
}

var decoder = compress.UnitDecoder(MaxPlain)

// DecodeUnit reads an encoded unit. Whatever b holds, it returns an error or a
// unit, and allocates at most MaxPlain bytes beyond what b's length accounts
// for. It keeps nothing of b.
func DecodeUnit(b []byte) (*Unit, error) {
	if len(b) < unitHeader || string(b[:4]) != unitMagic {
		return nil, errors.New("not a unit")
	}
	n, flags := binary.LittleEndian.Uint32(b[4:])&(1<<24-1), b[unitFlags]
	plain := binary.LittleEndian.Uint32(b[8:])
	frame := binary.LittleEndian.Uint32(b[12:])
	if flags&^flagTurned != 0 {
		return nil, fmt.Errorf("a unit with flags %#x, which this version does not know", flags)
	}
	if n == 0 || n > maxChunks || plain > MaxPlain || len(b) > MaxStored {
		return nil, fmt.Errorf("a unit of %d chunks and %d bytes, stored as %d, is beyond the format's bounds", n, plain, len(b))
	}
	if want := unitHeader + uint64(n)*unitEntry + uint64(frame); want != uint64(len(b)) {
		return nil, fmt.Errorf("a unit of %d bytes where its header says %d", len(b), want)
	}
	u := &Unit{table: bytes.Clone(b[unitHeader : unitHeader+int(n)*unitEntry]), ends: make([]uint32, n), good: make([]atomic.Bool, n)}
	var end uint64
	for i := range u.ends {
		length := binary.LittleEndian.Uint32(u.table[i*unitEntry+chunk.Size:])
		end += uint64(length)
		if length == 0 || length > chunk.MaxLength || end > uint64(plain) {
			return nil, fmt.Errorf("chunk %d of the unit has a length of %d bytes", i, length)
		}
		u.ends[i] = uint32(end)
	}
	if end != uint64(plain) {
		return nil, fmt.Errorf("the unit's chunks add up to %d bytes, not %d", end, plain)
	}
	var err error
	if u.plain, err = decoder.DecodeAll(b[len(b)-int(frame):], make([]byte, 0, plain)); err != nil {
		return nil, fmt.Errorf("decompress the unit: %w", err)
	}
	if len(u.plain) != int(plain) {
		return nil, fmt.Errorf("the unit decompresses to %d bytes, not %d", len(u.plain), plain)
	}
	if flags&flagTurned != 0 {
		turnBack(u.plain)
	}
	return u, nil
}

// Memory returns how many bytes a unit holds.
func (u *Unit) Memory() int64 {
	const end, good = 4, 4
	return int64(len(u.plain) + len(u.table) + u.Len()*(end+good))
}

// Len returns the number of chunks.
func (u *Unit) Len() int { return len(u.ends) }

// Ref returns what the table says of chunk i, without a hint.
func (u *Unit) Ref(i int) chunk.Ref {
	return chunk.Ref{ID: chunk.ID(u.table[i*unitEntry : i*unitEntry+chunk.Size]), Length: u.ends[i] - u.start(i)}
}

func (u *Unit) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return u.ends[i-1]
}

// Lookup returns the verified plain bytes of the chunk with that ID, or an error
// that wraps chunk.ErrNotFound if the unit does not hold it.
func (u *Unit) Lookup(id chunk.ID) ([]byte, error) {
	for i := range u.ends {
		if chunk.ID(u.table[i*unitEntry:i*unitEntry+chunk.Size]) == id {
			return u.Chunk(i)
		}
	}
	return nil, fmt.Errorf("chunk %s in the unit: %w", id.Short(), chunk.ErrNotFound)
}

// Chunk returns the plain bytes of chunk i once it has verified them, which it
// does once, or an *InvalidError. The bytes are the unit's own: valid as long
// as it is, and not to be changed.
func (u *Unit) Chunk(i int) ([]byte, error) {
	plain := u.plain[u.start(i):u.ends[i]:u.ends[i]]
	if u.good[i].Load() {
		return plain, nil
	}
	if err := u.Ref(i).Check(plain); err != nil {
		return nil, err
	}
	u.good[i].Store(true)
	return plain, nil
}
