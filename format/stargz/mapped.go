package stargz

import (
	"errors"
	"fmt"
	"slices"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/tree"
)

// unitTarget is the number of stored bytes up to which neighbouring parts of the blob become one
// unit, so that one request fetches them: about as much as arrives in a round trip of 1 ms at 1
// Gbit/s.
const unitTarget = 128 << 10

// maxPlain is the number of plain bytes up to which they do, so that a few bytes of a file of zeros
// do not cost megabytes of memory.
const maxPlain = 1 << 20

// mapper makes a layer table.
type mapper struct {
	layer.Layer
	divided  map[chunk.ID][]tree.Extent // of the writer's chunks that were divided
	landmark int64                      // the offset in the blob before which is what a start reads
}

// Map returns the layer with the blob of size bytes as a node reads it. Chunks of more than
// chunk.MaxLength bytes are divided, and the divisions have derived IDs. The error says which part
// of the layer exceeds the bounds of a table.
func (l *Layer) Map(blob chunk.ID, size int64) (*layer.Layer, error) {
	m, err := l.mapped(blob, size)
	if err != nil {
		return nil, err
	}
	return &m.Layer, nil
}

func (l *Layer) mapped(blob chunk.ID, size int64) (*mapper, error) {
	chunks := 0 // at most, divided ones included
	for _, u := range l.units {
		chunks += len(u.chunks) + int(u.chunks[0].length/chunk.MaxLength)
	}
	m := &mapper{layer.Layer{Table: layer.NewBuilder(blob, size), Units: make(map[chunk.ID]uint32, chunks)},
		map[chunk.ID][]tree.Extent{}, 0}
	if n := l.prefetch.Units; n > 0 {
		m.landmark = l.units[n-1].offset + 1
	}
	m.Source = func() tree.LayerSource { return &mappedSource{l.Source(), m.divided} }
	var next layer.Unit
	plain := int64(0) // of next
	for i, u := range l.units {
		stored, end := u.offset+u.length-next.Offset, u.chunks[len(u.chunks)-1].end()
		if len(next.Chunks) > 0 && (stored > unitTarget || plain+end > maxPlain || u.isLarge() ||
			len(next.Chunks)+len(u.chunks) > layer.MaxChunks || i == l.prefetch.Units) {
			if err := m.add(next); err != nil {
				return nil, err
			}
			next, plain = layer.Unit{Chunks: next.Chunks[:0]}, 0
		}
		if u.isLarge() {
			if err := m.divide(u); err != nil {
				return nil, err
			}
			continue
		}
		if len(next.Chunks) == 0 {
			next = layer.Unit{Offset: u.offset, Codec: u.codec(), Chunks: next.Chunks}
		}
		plain += end
		next.Stored = max(next.Stored, u.offset+u.length-next.Offset)
		for _, c := range u.chunks {
			next.Chunks = append(next.Chunks,
				layer.Chunk{ID: c.id, Begin: uint32(u.offset - next.Offset), Offset: uint32(c.at), Length: c.length})
		}
	}
	if len(next.Chunks) == 0 {
		return m, nil
	}
	return m, m.add(next)
}

// isLarge reports whether the unit is one chunk that is too large for a node.
func (u *unit) isLarge() bool { return u.chunks[0].length > chunk.MaxLength }

func (u *unit) codec() layer.Codec {
	if u.format == EStargz {
		return layer.Gzip
	}
	return layer.Zstd
}

func (m *mapper) add(u layer.Unit) error {
	n, err := m.Table.Add(u)
	if err != nil {
		return err
	}
	for _, c := range u.Chunks {
		m.Units[c.ID] = n
	}
	if u.Offset < m.landmark {
		m.First = append(m.First, n)
	}
	return nil
}

// divide adds a unit whose only chunk is large.
func (m *mapper) divide(u unit) error {
	c := u.chunks[0]
	if len(u.chunks) > 1 || c.at != 0 {
		return fmt.Errorf("map the part of the layer at %d: %w", u.offset,
			errors.New("a chunk of more than 1 MiB shares a member with others"))
	}
	to := layer.Unit{Offset: u.offset, Stored: u.length, Codec: u.codec(), Seal: layer.SealedPlain, Digest: c.id}
	key := to.Key()
	for at := uint32(0); at < c.length; at += chunk.MaxLength {
		n := min(c.length-at, chunk.MaxLength)
		id := key.Derive(at, n)
		to.Chunks = append(to.Chunks, layer.Chunk{ID: id, Offset: at, Length: n})
		m.divided[c.id] = append(m.divided[c.id], tree.Extent{ID: id, Length: int64(n)})
	}
	return m.add(to)
}

// mappedSource reads a layer's entries with their divided chunks.
type mappedSource struct {
	from    tree.LayerSource
	divided map[chunk.ID][]tree.Extent
}

// Next implements tree.LayerSource.
func (s *mappedSource) Next() (*tree.Entry, error) {
	e, err := s.from.Next()
	isDivided := func(x tree.Extent) bool { return s.divided[x.ID] != nil }
	if err != nil || !slices.ContainsFunc(e.Content.Extents, isDivided) {
		return e, err
	}
	mapped := *e
	mapped.Content.Extents = nil
	for _, x := range e.Content.Extents {
		if divided := s.divided[x.ID]; divided != nil {
			mapped.Content.Extents = append(mapped.Content.Extents, divided...)
		} else {
			mapped.Content.Extents = append(mapped.Content.Extents, x)
		}
	}
	return &mapped, nil
}
