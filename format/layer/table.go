package layer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
)

// Format is the number of the format of tables, which docs/format.md specifies.
const Format = 1

const (
	magic = "LGTRLYR" + string(rune(Format))

	// Sizes in bytes.
	headerSize = 64
	unitSize   = 68
	chunkSize  = chunk.Size + 12
	// maxPacked bounds a compressed window.
	maxPacked = WindowSize + WindowSize/8

	// MaxUnits bounds the units of a table, and maxChunks the chunks of all units together.
	MaxUnits  = 1 << 22
	maxChunks = 1 << 25
)

var (
	windowEncoder = compress.TextEncoder()
	windowDecoder = compress.TextDecoder(WindowSize)
)

// Layer is a layer as a node reads it: its entries, and the units that have their chunks.
type Layer struct {
	Table *Builder
	// Units are the numbers of the units, by chunk.
	Units map[chunk.ID]uint32
	// First are the numbers of the units that a start reads according to the writer of the layer,
	// ascending. Empty: the writer does not say.
	First []uint32
	// Source returns a reader of the entries, for tree.Apply.
	Source func() tree.LayerSource
}

// Builder makes a table. It keeps the table in memory.
type Builder struct {
	blob    chunk.ID
	size    int64
	units   []byte
	chunks  []byte
	windows []byte
	last    int64 // where the last unit begins
	end     int64 // of all units
}

// NewBuilder returns a builder of the table of a blob: its digest, and its size in bytes.
func NewBuilder(blob chunk.ID, size int64) *Builder { return &Builder{blob: blob, size: size} }

// NewReading returns a builder of the table of a blob that is still being read. SetBlob has to be
// called before the table is written.
func NewReading() *Builder { return &Builder{size: math.MaxInt64} }

// SetBlob sets the digest and the size in bytes of a blob that was read. The error says that a unit
// is outside of the blob.
func (b *Builder) SetBlob(blob chunk.ID, size int64) error {
	if b.end > size {
		return fmt.Errorf("table of layer %s: a unit ends at %d of %d bytes", blob.Short(), b.end, size)
	}
	b.blob, b.size = blob, size
	return nil
}

// Size returns the size of the table in bytes.
func (b *Builder) Size() int64 {
	return headerSize + int64(len(b.units)+len(b.chunks)+len(b.windows))
}

// Add appends a unit and returns its number, from 0. Units begin in ascending order. The error says
// what the unit lacks.
func (b *Builder) Add(u Unit) (n uint32, err error) {
	if err = u.check(b.size); err == nil && u.Offset < b.last {
		err = errors.New("it begins before the previous unit")
	}
	count, first := len(b.units)/unitSize, len(b.chunks)/chunkSize
	if err == nil && (count == MaxUnits || first+len(u.Chunks) > maxChunks) {
		err = errors.New("the table has too many units or chunks")
	}
	if err != nil {
		return 0, fmt.Errorf("add unit %d of layer %s: %w", count, b.blob.Short(), err)
	}
	b.last, b.end = u.Offset, max(b.end, u.Offset+u.Stored)
	at := len(b.windows)
	if len(u.Window) > 0 {
		b.windows = windowEncoder.EncodeAll(u.Window, b.windows)
	}
	le := binary.LittleEndian
	r := le.AppendUint64(b.units, uint64(u.Offset))
	r = le.AppendUint32(r, uint32(u.Stored))
	r = le.AppendUint32(r, uint32(first))
	r = le.AppendUint32(r, uint32(len(u.Chunks)))
	r = le.AppendUint64(r, uint64(at))
	r = le.AppendUint32(r, uint32(len(b.windows)-at))
	r = append(r, byte(u.Codec), byte(u.Seal), u.Bits, 0)
	b.units = append(r, u.Digest[:]...)
	for _, c := range u.Chunks {
		b.chunks = append(b.chunks, c.ID[:]...)
		for _, n := range []uint32{c.Begin, c.Offset, c.Length} {
			b.chunks = le.AppendUint32(b.chunks, n)
		}
	}
	return uint32(count), nil
}

// WriteTo writes the table.
func (b *Builder) WriteTo(w io.Writer) (written int64, err error) {
	le := binary.LittleEndian
	header := append([]byte(magic), b.blob[:]...)
	header = le.AppendUint64(header, uint64(b.size))
	header = le.AppendUint32(header, uint32(len(b.units)/unitSize))
	header = le.AppendUint32(header, uint32(len(b.chunks)/chunkSize))
	header = le.AppendUint64(header, uint64(len(b.windows)))
	for _, part := range [][]byte{header, b.units, b.chunks, b.windows} {
		n, err := w.Write(part)
		if written += int64(n); err != nil {
			return written, err
		}
	}
	return written, nil
}

// Open returns the table as it is now, in memory once more.
func (b *Builder) Open() (*Table, error) {
	var out bytes.Buffer
	out.Grow(int(b.Size()))
	if _, err := b.WriteTo(&out); err != nil {
		return nil, err
	}
	return OpenTable(bytes.NewReader(out.Bytes()), int64(out.Len()))
}

// Table is an open table. It is safe for concurrent use.
type Table struct {
	r       io.ReaderAt
	blob    chunk.ID
	size    int64 // of the blob
	units   int64
	chunks  int64
	windows int64 // bytes
}

// OpenTable opens the untrusted table of length bytes in r. Its units are read when they are asked
// for.
func OpenTable(r io.ReaderAt, length int64) (*Table, error) {
	var h [headerSize]byte
	if _, err := r.ReadAt(h[:], 0); err != nil && (err != io.EOF || length >= headerSize) {
		return nil, fmt.Errorf("open layer table: %w", err)
	}
	if length < headerSize || string(h[:len(magic)]) != magic {
		return nil, errors.New("open layer table: wrong magic")
	}
	le := binary.LittleEndian
	t := &Table{r: r, blob: chunk.ID(h[8:40]), units: int64(le.Uint32(h[48:])), chunks: int64(le.Uint32(h[52:]))}
	size, windows := le.Uint64(h[40:]), le.Uint64(h[56:])
	if t.blob.IsZero() || size > math.MaxInt64 || windows > math.MaxInt64/2 || t.units > MaxUnits ||
		t.chunks > maxChunks {
		return nil, fmt.Errorf("open layer table: %d units, %d chunks and a blob of %d bytes exceed the bounds of the "+
			"format", t.units, t.chunks, size)
	}
	t.size, t.windows = int64(size), int64(windows)
	if want := t.Size(); want != length {
		return nil, fmt.Errorf("open layer table: it has %d bytes, its header says %d", length, want)
	}
	return t, nil
}

// Blob returns the digest of the layer's blob, and its size in bytes.
func (t *Table) Blob() (id chunk.ID, size int64) { return t.blob, t.size }

// Size returns the size of the table in bytes.
func (t *Table) Size() int64 { return headerSize + t.units*unitSize + t.chunks*chunkSize + t.windows }

// Units returns the number of units.
func (t *Table) Units() int { return int(t.units) }

// Unit reads unit n. The error wraps chunk.ErrNotFound if there is no such unit.
func (t *Table) Unit(n uint32) (*Unit, error) {
	if int64(n) >= t.units {
		return nil, fmt.Errorf("unit %s/%d: %w: the table has %d units", t.blob.Short(), n, chunk.ErrNotFound, t.units)
	}
	u, err := t.unit(n)
	if err == nil {
		err = u.check(t.size)
	}
	if err != nil {
		return nil, fmt.Errorf("read unit %d of the table of layer %s: %w", n, t.blob.Short(), err)
	}
	return u, nil
}

func (t *Table) unit(n uint32) (*Unit, error) {
	le := binary.LittleEndian
	r, err := t.read(headerSize+int64(n)*unitSize, unitSize)
	if err != nil {
		return nil, err
	}
	u := &Unit{Offset: int64(le.Uint64(r)), Stored: int64(le.Uint32(r[8:])), Codec: Codec(r[32]), Seal: Seal(r[33]),
		Bits: r[34], Digest: chunk.ID(r[36:])}
	first, count := int64(le.Uint32(r[12:])), int64(le.Uint32(r[16:]))
	at, packed := le.Uint64(r[20:]), int64(le.Uint32(r[28:]))
	if r[35] != 0 || count > MaxChunks || first > t.chunks-count || packed > maxPacked || at > uint64(t.windows) ||
		int64(at) > t.windows-packed {
		return nil, fmt.Errorf("%d chunks from %d on, and a window of %d bytes, are outside of the table", count, first,
			packed)
	}
	chunks := headerSize + t.units*unitSize
	if r, err = t.read(chunks+first*chunkSize, count*chunkSize); err != nil {
		return nil, err
	}
	for ; len(r) > 0; r = r[chunkSize:] {
		n := r[chunk.Size:]
		u.Chunks = append(u.Chunks, Chunk{chunk.ID(r), le.Uint32(n), le.Uint32(n[4:]), le.Uint32(n[8:])})
	}
	if packed == 0 {
		return u, nil
	}
	if r, err = t.read(chunks+t.chunks*chunkSize+int64(at), packed); err != nil {
		return nil, err
	}
	if u.Window, err = windowDecoder.DecodeAll(r, nil); err != nil {
		return nil, fmt.Errorf("decompress its window: %w", err)
	}
	return u, nil
}

func (t *Table) read(at, n int64) ([]byte, error) {
	b := make([]byte, n)
	if _, err := t.r.ReadAt(b, at); err != nil && err != io.EOF {
		return nil, err
	} else if err == io.EOF && at+n > t.Size() {
		return nil, io.ErrUnexpectedEOF
	}
	return b, nil
}
