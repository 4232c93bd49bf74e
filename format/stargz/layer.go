package stargz

import "lighter/format/tree"

// Layer is a decoded table. It is safe for concurrent use; each source has its own position.
type Layer struct {
	entries  tree.Entries
	units    []unit // in the order of the blob: each distinct chunk of the entries is in one
	prefetch Prefetch
}

// Source returns a reader of the layer's entries, for tree.Apply. The entries are shared with other
// sources. Regular files have Extents, whatever their size, unless they are empty.
func (l *Layer) Source() tree.LayerSource { return l.entries.Source() }

// Prefetch returns what the writer of the layer expects a start to read.
func (l *Layer) Prefetch() Prefetch { return l.prefetch }
