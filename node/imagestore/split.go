package imagestore

import (
	"encoding/json"
	"io"

	"github.com/klauspost/compress/gzip"
)

// splitWriter writes a tar stream as a file of tar-split: lines of JSON, compressed with gzip. Such
// a file has the bytes between the contents of a stream's files, and names the files, which
// containers/storage then reads from the layer's directory. It may also have all bytes. This writer
// does that: so the stream is right whatever is in it, and no file is read.
type splitWriter struct {
	zip   *gzip.Writer
	lines *json.Encoder
	next  int
}

// segment is a line of the file.
type segment struct {
	Type     int    `json:"type"`
	Payload  []byte `json:"payload"`
	Position int    `json:"position"`
}

// segmentType is the type of a line that has bytes of the stream.
const segmentType = 2

// newSplitWriter returns a writer that has written the beginning of its file.
func newSplitWriter(w io.Writer) (*splitWriter, error) {
	zip, err := gzip.NewWriterLevel(w, gzip.NoCompression) // its reader is on this machine
	if err != nil {
		return nil, err
	}
	return &splitWriter{zip: zip, lines: json.NewEncoder(zip)}, zip.Flush()
}

// Write implements io.Writer. It writes one line.
func (w *splitWriter) Write(b []byte) (int, error) {
	err := w.lines.Encode(segment{segmentType, b, w.next})
	w.next++
	return len(b), err
}

// Close writes the end of the file. Without it, a reader fails.
func (w *splitWriter) Close() error { return w.zip.Close() }
