package ingest

import (
	"bufio"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"lighter/format/compress"
	"lighter/format/tree"
)

// recordFile is a layer record that is being written to a file.
type recordFile struct {
	*tree.RecordWriter
	z    *zstd.Encoder
	b    *bufio.Writer
	file *os.File
}

func createRecord(path string) (*recordFile, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("stage a layer record: %w", err)
	}
	b := bufio.NewWriterSize(file, 64<<10)
	z := compress.RecordEncoder(b)
	return &recordFile{tree.NewRecordWriter(z), z, b, file}, nil
}

func (r *recordFile) finish() error {
	for _, step := range []func() error{r.RecordWriter.Close, r.z.Close, r.b.Flush} {
		if err := step(); err != nil {
			return fmt.Errorf("stage a layer record: %w", err)
		}
	}
	return nil
}

// Close closes the file, finished or not.
func (r *recordFile) Close() error { return r.file.Close() }

// Record reads a layer record. It is opened by the first Next and closed at its end.
type Record struct {
	Open func() (io.ReadCloser, error) // the compressed record

	file   io.ReadCloser
	z      *zstd.Decoder
	reader *tree.RecordReader
}

var _ tree.LayerSource = (*Record)(nil)

// Next returns the next entry.
func (r *Record) Next() (*tree.Entry, error) {
	if r.reader == nil {
		var err error
		if r.file, err = r.Open(); err != nil {
			r.file = nil
			return nil, err
		}
		if r.z, err = compress.Reader(r.file); err != nil {
			return nil, err
		}
		r.reader = tree.NewRecordReader(r.z)
	}
	e, err := r.reader.Next()
	if err == io.EOF {
		r.Close()
	}
	return e, err
}

// Close closes the record before its end.
func (r *Record) Close() {
	if r.z != nil {
		r.z.Close()
		r.z = nil
	}
	if r.file != nil {
		_ = r.file.Close() // only read
		r.file = nil
	}
}

// OpenFile opens a file as Record.Open does.
func OpenFile(path string) (io.ReadCloser, error) { return os.Open(path) }
