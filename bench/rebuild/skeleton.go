package main

import (
	"archive/tar"
	"encoding/binary"
	"io"
)

// skeleton reads a tar stream to its end, and writes contents of files to contents and all other
// bytes to w: headers, padding, and what follows the archive. From both the same stream can be made
// again. For each entry of the archive, skeleton writes to w: the number of bytes before the
// content as a uvarint, these bytes, and the number of bytes of the content as a uvarint. At the
// end it writes the same for the rest of the stream, which has no content. It returns the length of
// the stream.
func skeleton(r io.Reader, w, contents io.Writer) (int64, error) {
	in := &tap{r: r}
	archive := tar.NewReader(in)
	for {
		_, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
		in.contents = contents
		// The reader reads exactly the bytes of the content here, and padding in Next. It expands a
		// sparse file, but in has the bytes as they are in the stream.
		_, err = io.Copy(io.Discard, archive)
		in.contents = nil
		if err != nil {
			return 0, err
		}
		if err := in.flush(w); err != nil {
			return 0, err
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return 0, err
	}
	return in.total, in.flush(w)
}

// tap is a reader that separates contents from other bytes.
type tap struct {
	r        io.Reader
	contents io.Writer // nil: these bytes are not content
	other    []byte    // bytes since the last flush that are not content
	content  uint64    // number of content bytes since the last flush
	total    int64
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.total += int64(n)
	if t.contents == nil {
		t.other = append(t.other, p[:n]...)
		return n, err
	}
	t.content += uint64(n)
	if _, err := t.contents.Write(p[:n]); err != nil {
		return n, err
	}
	return n, err
}

func (t *tap) flush(w io.Writer) error {
	part := binary.AppendUvarint(nil, uint64(len(t.other)))
	part = append(part, t.other...)
	part = binary.AppendUvarint(part, t.content)
	t.other, t.content = t.other[:0], 0
	_, err := w.Write(part)
	return err
}
