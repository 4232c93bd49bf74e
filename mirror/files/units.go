package files

import (
	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/wire"
)

// Wanted is what a tree needs of one unit.
type Wanted struct {
	Unit   chunk.Unit // zero: any unit with the chunk
	Chunks []chunk.ID
	Bytes  int64 // plain
}

// WantedUnits lists the units that hold a tree's chunks.
func WantedUnits(extents *index.Map, locations *index.Locations) (all []*Wanted, err error) {
	units := map[chunk.Unit]*Wanted{}
	for i := range extents.Extents {
		e, err := extents.Extent(i)
		if err != nil {
			return nil, err
		}
		unit, err := locations.Unit(i)
		if err != nil {
			return nil, err
		}
		w := units[unit]
		if w == nil || unit.IsZero() {
			w = &Wanted{Unit: unit}
			units[unit] = w
			all = append(all, w)
		}
		w.Chunks = append(w.Chunks, e.ID)
		w.Bytes += int64(e.Length)
	}
	return all, nil
}

// Path returns the path of the unit's file.
func (w *Wanted) Path(domain string) string {
	if w.Unit.IsZero() {
		return wire.ChunkPath(domain, w.Chunks[0])
	}
	return wire.UnitPath(domain, w.Unit)
}

// Check verifies all chunks of a unit, and that the wanted chunks are among them. path names the
// unit in errors.
func (w *Wanted) Check(path string, encoded []byte) error {
	unit, err := pack.DecodeUnit(encoded)
	if err == nil {
		for i := range unit.Len() {
			if _, wrong := unit.Chunk(i); wrong != nil {
				err = wrong
			}
		}
		for _, id := range w.Chunks {
			if _, missing := unit.Lookup(id); missing != nil {
				err = missing
			}
		}
	}
	if err != nil {
		return &chunk.InvalidError{What: path, Err: err}
	}
	return nil
}
