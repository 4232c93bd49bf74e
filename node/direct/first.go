package direct

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/layer"
)

// firstPack is the pack of those units of a layer that a start reads, as the writer of the layer
// says. A startup pack is fetched as a whole, and so these units are not in the pack of the layer.
// The pack's ID is the digest of its table, which is of the same blob as the layer's table.
type firstPack struct {
	Layer int      `json:"layer"` // its number in image.Layers
	Pack  chunk.ID `json:"pack"`
}

// writeFirst writes the tables of the first units of layers to files in dir, which have the packs'
// names. The tables of the layers are there, too. The pack of the top layer is fetched first.
func writeFirst(dir string, layers []*layer.Layer) (packs []firstPack, s layer.Startups, err error) {
	s.Units = map[chunk.ID]chunk.Unit{}
	for i, l := range slices.Backward(layers) {
		if len(l.First) == 0 {
			continue
		}
		pack, sizes, err := writeUnits(dir, i, l.First, s.Units)
		if err != nil {
			return nil, s, fmt.Errorf("the first units of layer %d: %w", i+1, err)
		}
		packs = append(packs, firstPack{i, pack})
		s.Packs = append(s.Packs, index.Startup{Pack: pack, Units: sizes, AtMount: true})
	}
	return packs, s, nil
}

// writeUnits writes the table of some units of layer i. It adds the places of their chunks to
// units.
func writeUnits(dir string, i int, first []uint32, units map[chunk.ID]chunk.Unit) (pack chunk.ID, sizes []uint32,
	err error) {
	file, err := os.Open(tablePath(dir, i))
	if err != nil {
		return pack, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return pack, nil, err
	}
	all, err := layer.OpenTable(file, info.Size())
	if err != nil {
		return pack, nil, err
	}
	b := layer.NewBuilder(all.Blob())
	places := map[chunk.ID]uint32{}
	for _, n := range first {
		u, err := all.Unit(n)
		if err != nil {
			return pack, nil, err
		}
		to, err := b.Add(*u)
		if err != nil {
			return pack, nil, err
		}
		sizes = append(sizes, uint32(u.Stored))
		for _, c := range u.Chunks {
			places[c.ID] = to
		}
	}
	var table bytes.Buffer
	if _, err := b.WriteTo(&table); err != nil {
		return pack, nil, err
	}
	pack = chunk.Sum(table.Bytes())
	for id, n := range places {
		if _, known := units[id]; !known {
			units[id] = chunk.Unit{Pack: pack, N: n}
		}
	}
	return pack, sizes, create(filepath.Join(dir, pack.String()), func(w io.Writer) error {
		_, err := table.WriteTo(w)
		return err
	})
}
