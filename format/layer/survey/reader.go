package survey

import (
	"fmt"
	"io"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// piece is a chunk, and where it is in the tar stream.
type piece struct {
	id       chunk.ID
	from, to int64
}

// stream is a layer's tar stream that tells where it comes from in the blob.
type stream interface {
	io.Reader
	// entry returns the last place at which decoding can begin for a byte of the tar stream.
	entry(from int64) entry
	// end returns where decoding can end so that all bytes of the tar stream up to there are
	// decoded. It reports whether that is known yet.
	end(to int64) (place, bool)
	// drop is called when nothing before that byte of the tar stream is asked for any more.
	drop(before int64)
	// close is called at the end of the stream, before the last unit is added.
	close()
}

// reader reads the tar stream, and places its chunks as soon as their place is known.
type reader struct {
	stream   stream
	plain    *summer // of stream
	contents tree.ContentReader
	seen     func(id chunk.ID, plain []byte) // nil: the caller does not need them
	pending  []piece                         // in the order of the stream
	units    unitMaker
}

// Read reads from the tar stream.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.plain.Read(p)
	if settled := r.settle(); settled != nil {
		return n, settled
	}
	// Chunks that are not pending yet are in the splitter's buffer, or further on.
	before := r.plain.n - chunk.ReadAhead - int64(n)
	if len(r.pending) > 0 {
		before = min(before, r.pending[0].from)
	}
	r.stream.drop(before)
	return n, err
}

// content reads a file.
func (r *reader) content(e *tree.Entry, file io.Reader) error {
	begin, at, extent := r.plain.n, r.plain.n, 0
	err := r.contents.Read(e, file, func(id chunk.ID, data []byte) error {
		for ; extent < len(e.Content.Extents)-1; extent++ {
			at += e.Content.Extents[extent].Length
		}
		p := piece{id, at, at + int64(len(data))}
		if p.to > r.plain.n {
			return &NoEntryError{p.from, "its file is sparse"}
		}
		if _, known := r.units.survey.Units[id]; !known {
			r.units.survey.Units[id] = 0 // until its unit is complete
			r.pending = append(r.pending, p)
			if r.seen != nil {
				r.seen(id, data)
			}
		}
		return nil
	})
	if err == nil && len(e.Content.Extents) > 0 && r.plain.n != begin+e.Size {
		err = &NoEntryError{begin, "its file is sparse"}
	}
	return err
}

// settle puts the chunks into units whose place is known.
func (r *reader) settle() error {
	for len(r.pending) > 0 {
		p := r.pending[0]
		from := r.stream.entry(p.from)
		to, known := r.stream.end(p.to)
		if !known {
			if r.plain.n-from.plain > maxDecoded {
				return &NoEntryError{p.from, fmt.Sprintf("decoding begins at %d and ends too late", from.plain)}
			}
			return nil
		}
		if err := r.units.add(p, from, to); err != nil {
			return err
		}
		r.pending = r.pending[1:]
	}
	return nil
}

// finish is called at the end of the tar stream.
func (r *reader) finish() error {
	r.stream.close()
	if err := r.settle(); err != nil {
		return err
	}
	if len(r.pending) > 0 {
		return &NoEntryError{r.pending[0].from, "nothing says where decoding can end"}
	}
	return r.units.flush()
}
