package stargz

import (
	"cmp"
	"fmt"
	"slices"

	"lighter/format/chunk"
)

const (
	// maxDepth bounds the plain bytes before a chunk's end in its member, and so the time to reach
	// it. Writers begin a member at least every few MB of plain bytes, or, if they are told to fill
	// members up to a number of compressed bytes, every few 10 MB.
	maxDepth = 256 << 20
	// maxUnitStored bounds the stored bytes of a unit. They suffice for a unit of MaxChunk bytes
	// that does not compress.
	maxUnitStored = MaxChunk + MaxChunk/8 + slack
	// maxChunks bounds the chunks of a unit.
	maxChunks = 1 << 16
	// slack is for headers, and blocks that were flushed early, in bytes.
	slack = 64 << 10
)

// spot is the position of a chunk: a unit, and the chunk's number in it.
type spot struct{ unit, n uint32 }

// makeUnits makes units of the parts of all files. A chunk that occurs more than once is in the
// unit of its first occurrence.
func makeUnits(t Table, parts []part) ([]unit, error) {
	slices.SortStableFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.inner, b.inner))
	})
	members, chunks := 0, 0
	for i, p := range parts {
		if i == 0 || p.offset != parts[i-1].offset {
			members++
		}
		if p.length > 0 {
			chunks++
		}
	}
	m := unitMaker{format: t.Format, units: make([]unit, 0, members), places: make([]place, 0, chunks),
		spots: make(map[chunk.ID]spot, chunks)}
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].offset == parts[0].offset {
			n++
		}
		end := t.DataEnd
		if n < len(parts) {
			end = parts[n].offset
		}
		if err := m.member(parts[:n], end); err != nil {
			return nil, fmt.Errorf("the part of the layer at offset %d: %w", parts[0].offset, err)
		}
		parts = parts[n:]
	}
	return slices.Clip(m.units), nil
}

type unitMaker struct {
	format Format
	units  []unit
	places []place // of the next unit; those of all units share an array
	spots  map[chunk.ID]spot
}

// member makes units of the parts that begin at one offset in the blob. They end at end at the
// latest. If the parts are large, they become several units, which overlap in the blob.
func (m *unitMaker) member(parts []part, end int64) error {
	offset, at := parts[0].offset, int64(0)
	for _, p := range parts {
		if p.end != 0 && (p.end <= offset || p.end > end) {
			return fmt.Errorf("it ends at %d, before its begin or after the next part's, %d", p.end, end)
		}
		if p.length == 0 {
			continue
		}
		if p.inner < at || p.inner > maxDepth-p.length {
			return fmt.Errorf("a chunk of %d bytes is %d bytes inside: it overlaps the one before, or ends behind %d",
				p.length, p.inner, maxDepth)
		}
		at = p.inner + p.length
		if known, err := m.isKnown(p); err != nil || known {
			if err != nil {
				return err
			}
			continue
		}
		if len(m.places) == maxChunks || len(m.places) > 0 && at-m.places[0].at > MaxChunk {
			if err := m.close(offset, end); err != nil {
				return err
			}
		}
		m.spots[p.id] = spot{uint32(len(m.units)), uint32(len(m.places))}
		m.places = append(m.places, place{id: p.id, at: p.inner, length: uint32(p.length)})
	}
	if len(parts) == 1 && parts[0].end != 0 {
		end = parts[0].end
	}
	return m.close(offset, end)
}

// isKnown reports whether a unit has the part's chunk already.
func (m *unitMaker) isKnown(p part) (bool, error) {
	at, known := m.spots[p.id]
	if !known {
		return false, nil
	}
	places := m.places // of the unit that is being made
	if int(at.unit) < len(m.units) {
		places = m.units[at.unit].chunks
	}
	if length := places[at.n].length; int64(length) != p.length {
		return false, fmt.Errorf("chunk %s has %d bytes, and elsewhere %d", p.id.Short(), p.length, length)
	}
	return true, nil
}

// close makes a unit of the places, if there are any, in a member at offset.
func (m *unitMaker) close(offset, end int64) error {
	if len(m.places) == 0 {
		return nil
	}
	plain := m.places[len(m.places)-1].end()
	length := min(end-offset, plain+plain/8+slack)
	if length > maxUnitStored {
		return fmt.Errorf("a chunk ends %d plain bytes inside, in %d stored bytes; the limit is %d",
			plain, length, int64(maxUnitStored))
	}
	n := len(m.places)
	m.units = append(m.units, unit{offset: offset, length: length, format: m.format, chunks: m.places[:n:n]})
	m.places = m.places[n:]
	return nil
}
