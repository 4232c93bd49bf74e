package audit

import (
	"io"
	"slices"

	"lighter/format/chunk"
	"lighter/format/layer"
)

// parts passes a blob on, and decodes the units that have chunks with derived IDs on the way. Such
// units follow each other in the blob, and may share a byte.
type parts struct {
	r     io.Reader
	table *layer.Table
	seen  func(id chunk.ID, plain []byte)

	n      uint32      // the next unit of the table
	unit   *layer.Unit // that is decoded next; nil: it has to be looked for
	end    int64       // in the blob: of the units before
	at     int64       // in the blob: of recent
	recent []byte      // read and needed for unit
	failed error       // a *DifferenceError, or the table cannot be read
}

// Read implements io.Reader.
func (p *parts) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.recent = append(p.recent, b[:n]...)
	for p.failed == nil && p.next() {
		p.drop(p.unit.Offset)
		if p.at < p.unit.Offset || int64(len(p.recent)) < p.unit.Stored {
			return n, err
		}
		p.failed = p.decode()
		p.unit = nil
	}
	p.drop(p.at + int64(len(p.recent)))
	return n, err
}

// next finds the next unit that has chunks with derived IDs: they have a seal.
func (p *parts) next() bool {
	for p.unit == nil && int(p.n) < p.table.Units() {
		u, err := p.table.Unit(p.n)
		if err != nil {
			p.failed = err
			return false
		}
		p.n++
		if u.Seal == layer.Unsealed {
			continue
		}
		if u.Offset < p.end-1 {
			p.failed = differs("the units at %d and before it overlap", u.Offset)
			return false
		}
		p.unit, p.end = u, u.Offset+u.Stored
	}
	return p.unit != nil
}

// decode decodes the unit.
func (p *parts) decode() error {
	batch, err := p.unit.Decode(p.recent[:p.unit.Stored])
	if err != nil {
		return differs("%v", err)
	}
	for i := range batch.Len() {
		plain, err := batch.Chunk(i)
		if err != nil {
			return differs("%v", err)
		}
		p.seen(batch.Ref(i).ID, plain)
	}
	p.drop(p.end - 1) // the next unit may begin with the last byte
	return nil
}

// drop forgets the bytes before a place in the blob.
func (p *parts) drop(before int64) {
	if n := min(before-p.at, int64(len(p.recent))); n > 0 {
		p.recent = slices.Delete(p.recent, 0, int(n))
		p.at += n
	}
}
