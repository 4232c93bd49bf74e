package stargz

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc64"
	"io"
	"path"

	"github.com/klauspost/compress/zstd"

	"lighter/format/compress"
)

// maxSegment bounds a segment in bytes. The headers of an entry have at most 3 MiB: archive/tar
// bounds each name and all PAX records.
const maxSegment = 4 << 20

// tarSplit writes what is needed to make the layer's tar again from its files, as
// github.com/vbatts/tar-split does: JSON lines, compressed. containers/storage computes the diffID
// with it, and refuses a table that does not have the same entries.
type tarSplit struct {
	stored  bytes.Buffer
	zstd    *zstd.Encoder
	plain   int64
	lines   *json.Encoder
	n       int
	segment []byte              // headers and padding that are not written
	seen    map[string]struct{} // the paths of all entries
}

// splitLine is a line: a file, or a segment of the tar between files.
type splitLine struct {
	Type     int    `json:"type"`
	Name     string `json:"name,omitempty"`
	Size     int64  `json:"size,omitempty"`
	Payload  []byte `json:"payload"` // of a file its CRC-64, or null; of a segment its bytes
	Position int    `json:"position"`
}

const (
	splitFile    = 1
	splitSegment = 2
)

func newTarSplit() *tarSplit {
	s := &tarSplit{seen: map[string]struct{}{}}
	s.zstd = compress.IndexEncoder(&s.stored, maxSegment)
	s.lines = json.NewEncoder(s)
	return s
}

// Write compresses lines.
func (s *tarSplit) Write(b []byte) (int, error) {
	s.plain += int64(len(b))
	return s.zstd.Write(b)
}

func (s *tarSplit) line(l splitLine) error {
	l.Position = s.n
	s.n++
	return s.lines.Encode(l)
}

// add adds bytes of the tar that are not a file's.
func (s *tarSplit) add(b []byte) error {
	s.segment = append(s.segment, b...)
	if len(s.segment) < maxSegment {
		return nil
	}
	return s.flush()
}

func (s *tarSplit) flush() error {
	if len(s.segment) == 0 {
		return nil
	}
	err := s.line(splitLine{Type: splitSegment, Payload: s.segment})
	s.segment = s.segment[:0]
	return err
}

// file adds an entry, of a file with the CRC of its content.
func (s *tarSplit) file(it item, sum hash.Hash64) error {
	name := path.Clean(it.Name)
	if _, again := s.seen[name]; again {
		return fmt.Errorf("a second entry of the path: containers/storage refuses it")
	}
	s.seen[name] = struct{}{}
	if err := s.flush(); err != nil {
		return err
	}
	l := splitLine{Type: splitFile, Name: it.Name, Size: it.Size}
	if it.Size > 0 {
		l.Payload = sum.Sum(nil)
	}
	return s.line(l)
}

// finish returns the compressed lines, and their length before.
func (s *tarSplit) finish() (stored []byte, plain int64, err error) {
	if err := s.flush(); err != nil {
		return nil, 0, err
	}
	if err := s.zstd.Close(); err != nil {
		return nil, 0, err
	}
	return s.stored.Bytes(), s.plain, nil
}

// newCRC returns the hash of files.
func newCRC() hash.Hash64 { return crc64.New(crc64.MakeTable(crc64.ISO)) }

var _ io.Writer = (*tarSplit)(nil)
