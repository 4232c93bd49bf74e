package survey

import (
	"bytes"
	"io"

	"lighter/format/deflate"
)

const (
	// storedSpacing and plainSpacing are the bytes of the blob and of the tar stream after which
	// the next block becomes an entry. docs/decisions/direct.md has the measurements.
	storedSpacing = 768 << 10
	plainSpacing  = 4 << 20
)

// members is a layer of gzip members.
type members struct {
	places
	r      *deflate.Reader
	plain  int64
	window []byte // of the last entry, not pruned yet
}

func newMembers(blob io.Reader) *members {
	m := &members{}
	m.r = deflate.NewIndexer(blob, deflate.WindowSize, m.checkpoint)
	return m
}

// checkpoint makes a checkpoint an entry if it is far enough from the last one. They are more than
// a window apart, so that all is known about the window of the last one.
func (m *members) checkpoint(c deflate.Checkpoint) error {
	at := entry{place: place{c.Out, c.Start()}, bits: c.Bits}
	if n := len(m.entries); n > 0 {
		last := m.entries[n-1]
		if at.plain-last.plain <= deflate.WindowSize ||
			at.blob-last.blob < storedSpacing && at.plain-last.plain < plainSpacing {
			return nil
		}
	}
	m.close()
	m.window = bytes.Clone(c.Window)
	m.r.Track()
	at.window = m.window
	m.addEntry(at)
	return nil
}

// close implements stream. Units that have the window are added later.
func (m *members) close() { m.r.Prune(m.window) }

// Read implements io.Reader.
func (m *members) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.plain += int64(n)
	m.addEnd(place{m.plain, m.r.Consumed()})
	return n, err
}
