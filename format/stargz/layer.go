package stargz

import (
	"lighter/format/chunk"
	"lighter/format/tree"
)

// Layer is a decoded table. It is safe for concurrent use; each source has its own position.
type Layer struct {
	entries  tree.Entries
	units    []Unit // in the order of the blob
	spots    map[chunk.ID]spot
	prefetch Prefetch
}

// Source returns a reader of the layer's entries, for tree.Apply. The entries are shared with other
// sources. Regular files have Extents, whatever their size, unless they are empty.
func (l *Layer) Source() tree.LayerSource { return l.entries.Source() }

// Len returns the number of entries.
func (l *Layer) Len() int { return len(l.entries) }

// Units returns the units that have the chunks of the entries, in the order of the blob. Each
// distinct chunk is in one unit. The caller must not change the slice.
func (l *Layer) Units() []Unit { return l.units }

// Find returns the position in Units of the unit that has a chunk.
func (l *Layer) Find(id chunk.ID) (n int, found bool) {
	s, found := l.spots[id]
	return int(s.unit), found
}

// Prefetch returns what the writer of the layer expects a start to read.
func (l *Layer) Prefetch() Prefetch { return l.prefetch }
