package survey

import (
	"fmt"

	"lighter/format/layer"
)

const (
	// unitTarget is the number of stored bytes up to which neighbouring chunks share a unit: about
	// as much as arrives in a round trip of 1 ms at 1 Gbit/s.
	unitTarget = 128 << 10
	// plainTarget is the number of plain bytes up to which they do.
	plainTarget = 1 << 20
	// maxDecoded bounds the plain bytes of the whole zstd frames of a unit, as package layer does.
	// Other decoders end after the last chunk.
	maxDecoded = 2 * layer.MaxPlain
)

// unitMaker makes units of chunks, which come in the order of the tar stream.
type unitMaker struct {
	survey *Survey
	codec  layer.Codec
	entry  entry // of unit
	unit   layer.Unit
}

// add adds a chunk to a unit. Decoding can begin at from and end at to.
func (m *unitMaker) add(p piece, from entry, to place) error {
	n := len(m.unit.Chunks)
	isSame := from.place == m.entry.place
	fits := to.blob-m.unit.Offset <= unitTarget && to.plain-m.entry.plain <= plainTarget
	// The other chunks of a large frame are read without the next frame.
	grows := m.codec == layer.Zstd && to.blob-m.unit.Offset-m.unit.Stored > unitTarget
	if n > 0 && (n == layer.MaxChunks || !fits && (!isSame || grows)) {
		if err := m.flush(); err != nil {
			return err
		}
		n = 0
	}
	if n == 0 {
		m.entry = from
		m.unit = layer.Unit{Offset: from.blob, Codec: m.codec, Bits: from.bits, Window: from.window}
	}
	m.unit.Stored = max(m.unit.Stored, to.blob-m.unit.Offset)
	m.unit.Chunks = append(m.unit.Chunks,
		layer.Chunk{ID: p.id, Offset: uint32(p.from - m.entry.plain), Length: uint32(p.to - p.from)})
	if p.to-m.entry.plain > layer.MaxPlain || to.plain-m.entry.plain > maxDecoded || m.unit.Stored > layer.MaxStored {
		return &NoEntryError{p.from, fmt.Sprintf("decoding begins at %d, and %d bytes of the blob are needed",
			m.entry.plain, m.unit.Stored)}
	}
	return nil
}

// flush completes the current unit.
func (m *unitMaker) flush() error {
	if len(m.unit.Chunks) == 0 {
		return nil
	}
	n, err := m.survey.Table.Add(m.unit)
	for _, c := range m.unit.Chunks {
		m.survey.Units[c.ID] = n
	}
	m.unit = layer.Unit{Chunks: m.unit.Chunks[:0]}
	return err
}
