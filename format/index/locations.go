package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"lighter/format/chunk"
)

// Locations say in which unit each extent's chunk lies now: record i belongs to
// extent i. They are a hint: nothing depends on their truth but speed, and a
// hub may give other ones tomorrow. docs/format.md has the bytes.
const (
	locationsMagic  = "LIGHTLOC"
	locationsHeader = 56
	locationSize    = 8
	unknownPack     = ^uint32(0)
	maxPacks        = 1 << 24
)

// LocationsBuilder collects the locations of one tree's extents, in order.
type LocationsBuilder struct {
	tree    chunk.ID
	packs   map[chunk.ID]uint32
	ids     []byte
	records []byte
}

// NewLocations starts the locations of a tree.
func NewLocations(tree chunk.ID) *LocationsBuilder {
	return &LocationsBuilder{tree: tree, packs: map[chunk.ID]uint32{}}
}

// Add appends the location of the next extent; the zero unit is "unknown".
func (b *LocationsBuilder) Add(u chunk.Unit) {
	which := unknownPack
	if !u.IsZero() {
		var known bool
		if which, known = b.packs[u.Pack]; !known {
			which = uint32(len(b.packs))
			b.packs[u.Pack] = which
			b.ids = append(b.ids, u.Pack[:]...)
		}
	}
	b.records = binary.LittleEndian.AppendUint32(b.records, which)
	b.records = binary.LittleEndian.AppendUint32(b.records, u.N)
}

// Encode returns the locations' bytes.
func (b *LocationsBuilder) Encode() []byte {
	out := make([]byte, 0, locationsHeader+len(b.ids)+len(b.records))
	out = append(out, locationsMagic...)
	out = binary.LittleEndian.AppendUint32(out, Format)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.packs)))
	out = binary.LittleEndian.AppendUint64(out, uint64(len(b.records)/locationSize))
	out = append(out, b.tree[:]...)
	out = append(out, b.ids...)
	return append(out, b.records...)
}

// Locations reads locations from a file, record by record.
type Locations struct {
	r     io.ReaderAt
	packs []byte
	n     int64
}

// OpenLocations opens the locations of the given tree, which has the given
// number of extents (-1: not known yet), from the size bytes of r.
func OpenLocations(r io.ReaderAt, size int64, tree chunk.ID, extents int64) (*Locations, error) {
	var h [locationsHeader]byte
	if _, err := r.ReadAt(h[:], 0); err != nil {
		return nil, fmt.Errorf("read the locations: %w", noEOF(err))
	}
	packs := int64(binary.LittleEndian.Uint32(h[12:]))
	n := binary.LittleEndian.Uint64(h[16:])
	if extents < 0 {
		extents = int64(min(n, uint64(size)))
	}
	switch {
	case string(h[:8]) != locationsMagic || binary.LittleEndian.Uint32(h[8:]) != Format:
		return nil, errors.New("not locations of format 1")
	case chunk.ID(h[24:56]) != tree:
		return nil, fmt.Errorf("locations of tree %s, not of %s", chunk.ID(h[24:56]).Short(), tree.Short())
	case n != uint64(extents) || packs > min(extents, maxPacks) || size != locationsHeader+packs*chunk.Size+extents*locationSize:
		return nil, fmt.Errorf("locations of %d bytes do not fit %d extents", size, extents)
	}
	l := &Locations{r: r, n: extents, packs: make([]byte, packs*chunk.Size)}
	if _, err := r.ReadAt(l.packs, locationsHeader); err != nil && len(l.packs) > 0 {
		return nil, fmt.Errorf("read the locations: %w", noEOF(err))
	}
	return l, nil
}

// Unit returns where the chunk of extent i was, or the zero unit.
func (l *Locations) Unit(i int64) (chunk.Unit, error) {
	if i < 0 || i >= l.n {
		return chunk.Unit{}, fmt.Errorf("location %d of %d: %w", i, l.n, chunk.ErrNotFound)
	}
	var b [locationSize]byte
	if _, err := l.r.ReadAt(b[:], locationsHeader+int64(len(l.packs))+i*locationSize); err != nil {
		return chunk.Unit{}, fmt.Errorf("read location %d: %w", i, noEOF(err))
	}
	which := binary.LittleEndian.Uint32(b[:])
	if which == unknownPack {
		return chunk.Unit{}, nil
	}
	if int64(which) >= int64(len(l.packs)/chunk.Size) {
		return chunk.Unit{}, fmt.Errorf("location %d is out of bounds", i)
	}
	return chunk.Unit{Pack: chunk.ID(l.packs[which*chunk.Size:][:chunk.Size]), N: binary.LittleEndian.Uint32(b[4:])}, nil
}
