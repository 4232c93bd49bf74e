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

// OpenRecord opens a compressed record in a file, and returns its plain bytes. The caller closes
// it.
func OpenRecord(path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return compress.ReadCloser(file)
}

// Record reads a layer record. It is opened by the first Next and closed at its end.
type Record struct {
	Open func() (io.ReadCloser, error) // the plain bytes

	opened io.ReadCloser
	reader *tree.RecordReader
}

var _ tree.LayerSource = (*Record)(nil)

// Next returns the next entry.
func (r *Record) Next() (*tree.Entry, error) {
	if r.reader == nil {
		opened, err := r.Open()
		if err != nil {
			return nil, err
		}
		r.opened, r.reader = opened, tree.NewRecordReader(opened)
	}
	e, err := r.reader.Next()
	if err == io.EOF {
		r.Close()
	}
	return e, err
}

// Close closes the record, also before its end.
func (r *Record) Close() {
	if r.opened != nil {
		_ = r.opened.Close() // only read
		r.opened = nil
	}
}
