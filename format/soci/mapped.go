package soci

import (
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/tree"
)

// Map returns the layer with the blob of size bytes as a node reads it: each span is a unit, which
// is verified by the digest of its compressed bytes, and the chunks have derived IDs. A file that
// crosses spans has a chunk in each. A start reads the spans of prefetch, a list of DecodePrefetch;
// their priorities are ignored. The error says which span exceeds the bounds of a table.
func (t *Table) Map(blob chunk.ID, size int64, prefetch []Spans) (*layer.Layer, error) {
	if size != t.CompressedSize {
		return nil, fmt.Errorf("the zTOC is of a layer of %d bytes, the blob has %d", t.CompressedSize, size)
	}
	m := &mapper{table: t, units: make([]layer.Unit, t.Spans()), keys: make([]layer.Key, t.Spans())}
	for i := range m.units {
		s := t.Span(i)
		if s.Plain.Len() > layer.MaxPlain {
			return nil, fmt.Errorf("span %d has %d plain bytes: the limit is %d", i, s.Plain.Len(), layer.MaxPlain)
		}
		m.units[i] = t.unit(s)
		m.keys[i] = m.units[i].Key()
	}
	if err := m.collect(); err != nil {
		return nil, err
	}
	l := &layer.Layer{Table: layer.NewBuilder(blob, size), Units: map[chunk.ID]uint32{}}
	changes := make([]int, t.Spans()+1) // how many runs begin at a span, less those that end before it
	for _, s := range prefetch {
		changes[s.First]++
		changes[s.Last+1]--
	}
	runs := 0
	for i, u := range m.units {
		runs += changes[i]
		if len(u.Chunks) == 0 {
			continue
		}
		n, err := l.Table.Add(u)
		if err != nil {
			return nil, fmt.Errorf("span %d: %w", i, err)
		}
		for _, c := range u.Chunks {
			l.Units[c.ID] = n
		}
		if runs > 0 {
			l.First = append(l.First, n)
		}
	}
	m.units = nil // the table has them
	l.Source = func() tree.LayerSource { return t.Layer(m.content) }
	return l, nil
}

// unit returns the unit of a span, without its chunks.
func (t *Table) unit(s Span) layer.Unit {
	u := layer.Unit{Offset: s.Compressed.Start, Stored: s.Compressed.Len(), Codec: layer.Stored,
		Seal: layer.SealedStored, Digest: chunk.ID(s.Digest)}
	if t.Compression == Gzip {
		c := s.Checkpoint()
		u.Codec, u.Bits, u.Window = layer.Deflate, c.Bits, c.Window
	}
	return u
}

// mapper divides files into chunks: at the ends of spans, and after chunk.MaxLength bytes.
type mapper struct {
	table *Table
	units []layer.Unit
	keys  []layer.Key // of the units
}

// collect adds the chunks of all files to the units.
func (m *mapper) collect() error {
	source := m.table.Layer(func(e *tree.Entry, offset int64) error {
		m.divide(e.Size, offset, func(span int, c layer.Chunk) {
			m.units[span].Chunks = append(m.units[span].Chunks, c)
		})
		return nil
	})
	for {
		if _, err := source.Next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// content sets the extents of a file.
func (m *mapper) content(e *tree.Entry, offset int64) error {
	m.divide(e.Size, offset, func(_ int, c layer.Chunk) {
		e.Content.Extents = append(e.Content.Extents, tree.Extent{ID: c.ID, Length: int64(c.Length)})
	})
	return nil
}

// divide calls add for each chunk of size bytes at an offset of the plain layer.
func (m *mapper) divide(size, offset int64, add func(span int, c layer.Chunk)) {
	for end := offset + size; offset < end; {
		i := m.table.SpanAt(offset)
		s := m.table.Span(i)
		n := min(end, s.Plain.End, offset+chunk.MaxLength) - offset
		at := offset - s.Plain.Start
		add(i, layer.Chunk{ID: m.keys[i].Derive(uint32(at), uint32(n)), Offset: uint32(at), Length: uint32(n)})
		offset += n
	}
}
