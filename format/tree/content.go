package tree

import (
	"io"

	"lighter/format/chunk"
)

// ContentReader reads the contents of files into the form that determines tree IDs: a small file
// inline, a larger one in chunks. It keeps a buffer of chunk.ReadAhead bytes between files, so it
// is for one goroutine at a time. The zero value is ready to use.
type ContentReader struct{ splitter chunk.Splitter }

// Read reads e.Size bytes from r and sets e.Content, as Scan wants it. It calls keep for each
// chunk, after the chunk's extent was added. data is valid only during the call.
func (c *ContentReader) Read(e *Entry, r io.Reader, keep func(id chunk.ID, data []byte) error) error {
	if e.Size <= InlineLimit {
		e.Content.Inline = make([]byte, e.Size)
		_, err := io.ReadFull(r, e.Content.Inline)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return c.splitter.Split(r, e.Size, func(data []byte, zeros int64) error {
		if data == nil {
			e.Content.Extents = append(e.Content.Extents, Extent{Length: zeros})
			return nil
		}
		id := chunk.Sum(data)
		e.Content.Extents = append(e.Content.Extents, Extent{ID: id, Length: int64(len(data))})
		return keep(id, data)
	})
}
