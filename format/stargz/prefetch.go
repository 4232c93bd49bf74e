package stargz

import (
	"archive/tar"
	"strings"

	"lighter/format/tree"
)

// The files that a writer of eStargz adds to the root: landmarks between the files that a start
// needs, which come first, and all others. The table is in the tar, too.
const (
	landmark   = ".prefetch.landmark"
	noLandmark = ".no" + landmark
)

// Hides reports whether an entry of that name is a file of the format itself, which a Layer leaves
// out, as stargz-snapshotter does.
func (f Format) Hides(name string) bool {
	// Cleaning a name takes longer than looking for the parts that all of the names have.
	may := strings.Contains(name, landmark) || strings.Contains(name, tableName)
	return may && f.hasOwnFiles() && isOwnFile(cleanName(name))
}

// Prefetch says what the writer of a layer expects a start to read. stargz-snapshotter fetches all
// of it before the first start.
type Prefetch struct {
	// Known says that the layer has a landmark. If it has none of these files, nothing is known.
	Known bool
	// Files are the paths of the regular files before the landmark, in the order of the blob: that
	// of their first reads, in an image that was optimized by a trace. Empty files are missing.
	Files []string
	// Units is the number of units before the landmark, which come first in the blob.
	Units int
}

// marks are the files among the rows that are not shown.
type marks struct {
	entries int   // number of entries before the landmark
	offset  int64 // of the landmark in the blob
	found   bool  // there is a landmark
	none    bool  // there is a mark that nothing needs to be fetched
}

// add looks at a row that is no chunk, behind a number of entries. It reports whether the row is
// hidden.
func (m *marks) add(f Format, r *row, entries int) bool {
	if !f.Hides(r.Name) {
		return false
	}
	switch cleanName(r.Name) {
	case landmark:
		m.entries, m.offset, m.found = entries, r.Offset, true
	case noLandmark:
		m.none = true
	}
	return true
}

// prefetch returns the result. units are in the order of the blob.
func (m *marks) prefetch(entries []*tree.Entry, units []unit) Prefetch {
	if m.none || !m.found {
		return Prefetch{Known: m.none}
	}
	p := Prefetch{Known: true}
	for _, e := range entries[:m.entries] {
		if e.Type == tar.TypeReg && e.Size > 0 {
			p.Files = append(p.Files, cleanName(e.Name))
		}
	}
	for p.Units < len(units) && units[p.Units].offset < m.offset {
		p.Units++
	}
	return p
}
