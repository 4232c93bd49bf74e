package layer

import (
	"fmt"

	"lighter/format/chunk"
	"lighter/format/index"
)

// Places say where the chunks of a layer are.
type Places struct {
	Blob  chunk.ID            // the layer's blob, as a pack
	Units map[chunk.ID]uint32 // the numbers of the units, by chunk
}

// Places returns where the layer's chunks are.
func (l *Layer) Places() Places { return Places{l.Table.blob, l.Units} }

// Places reads where the chunks of an untrusted table are. If several units have a chunk, it is the
// first one. The result takes about 100 bytes a chunk.
func (t *Table) Places() (Places, error) {
	p := Places{Blob: t.blob, Units: make(map[chunk.ID]uint32, t.chunks)}
	for n := range uint32(t.units) {
		u, err := t.Unit(n)
		if err != nil {
			return Places{}, err
		}
		for _, c := range u.Chunks {
			if _, known := p.Units[c.ID]; !known {
				p.Units[c.ID] = n
			}
		}
	}
	return p, nil
}

// Startups are startup packs that are made for a tree whose other chunks stay in its layers.
type Startups struct {
	Packs []index.Startup
	Units map[chunk.ID]chunk.Unit // of the chunks in the packs
}

// Locations returns the encoded locations of a tree's chunks: in the startup packs, or else in the
// lowest layer that has the chunk. refs calls fn with the chunk of each of the tree's extents, in
// order. The error is that of refs, or names a chunk that no layer has.
func Locations(tree chunk.ID, refs func(fn func(i int64, ref chunk.Ref) error) error, layers []Places,
	made Startups) ([]byte, error) {
	b := index.NewLocations(tree)
	err := refs(func(_ int64, ref chunk.Ref) error {
		if u, found := made.Units[ref.ID]; found {
			b.Add(u)
			return nil
		}
		for _, l := range layers {
			if n, found := l.Units[ref.ID]; found {
				b.Add(chunk.Unit{Pack: l.Blob, N: n})
				return nil
			}
		}
		return fmt.Errorf("no layer has chunk %s", ref.ID.Short())
	})
	if err != nil {
		return nil, err
	}
	for _, s := range made.Packs {
		b.Startup(s)
	}
	return b.Encode(), nil
}
