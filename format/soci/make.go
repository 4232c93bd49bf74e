package soci

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	flatbuffers "github.com/google/flatbuffers/go"

	"lighter/format/deflate"
	"lighter/format/tree"
)

// DefaultSpanSize is the span size that SOCI's programs use if none is given.
const DefaultSpanSize = 4 << 20

const (
	// maxTable bounds the size of a zTOC in bytes: FlatBuffers have at most 2 GiB.
	maxTable = 1 << 30
	// maxEmptySpans bounds the spans before the first plain byte. An empty block takes 10 bits of
	// the layer, but its checkpoint 32 KiB of the zTOC.
	maxEmptySpans = 1000
)

// Options say how Make indexes a layer.
type Options struct {
	Compression Compression
	SpanSize    int64       // plain bytes of a span, at least; more than 0
	Tool        string      // the name of the program, for the zTOC
	Limits      tree.Limits // of the layer
	Plain       io.Writer   // gets the plain layer, to its end; nil: nothing does
}

// Make reads a layer's blob to its end and returns its zTOC. It returns the same bytes as SOCI's
// programs on a machine whose time zone is UTC. It refuses layers that they refuse, and layers with
// sparse files. The error wraps a *tree.LimitError if the layer exceeds the limits.
//
// Make needs about a kilobyte of memory for an entry, and twice the size of the zTOC.
func Make(blob io.Reader, o Options) ([]byte, error) {
	if o.SpanSize <= 0 {
		return nil, fmt.Errorf("make a zTOC: spans of %d bytes", o.SpanSize)
	}
	m := maker{options: o}
	err := errors.New("no zTOC knows it")
	switch o.Compression {
	case Gzip:
		err = m.readGzip(blob)
	case Uncompressed:
		err = m.readTar(blob)
	}
	if err != nil {
		return nil, fmt.Errorf("make a zTOC: %s: %w", o.Compression, err)
	}
	return m.encode()
}

// maker collects what a zTOC says about a layer.
type maker struct {
	options    Options
	files      []file
	plainSize  int64 // of the archive
	size       int64 // of the blob
	digests    []Digest
	zinfo      []byte
	emptySpans int
	bytes      int // the size of the zTOC, about
}

type file struct {
	header *tar.Header
	offset int64
}

func (m *maker) readGzip(blob io.Reader) error {
	m.zinfo = make([]byte, zinfoHeader)
	hasher := &spanHasher{src: blob}
	plain := deflate.NewIndexer(hasher, m.options.SpanSize, func(c deflate.Checkpoint) error {
		hasher.cut(c.Start(), c.In)
		return m.addCheckpoint(c)
	})
	if err := m.readEntries(plain); err != nil {
		return err
	}
	m.digests, m.size = hasher.end()
	binary.LittleEndian.PutUint32(m.zinfo, uint32(len(m.digests)))
	binary.LittleEndian.PutUint64(m.zinfo[4:], uint64(m.options.SpanSize))
	return nil
}

func (m *maker) addCheckpoint(c deflate.Checkpoint) error {
	if c.Out == 0 {
		if m.emptySpans++; m.emptySpans > maxEmptySpans {
			return fmt.Errorf("more than %d empty blocks at the beginning", maxEmptySpans)
		}
	}
	m.zinfo = binary.LittleEndian.AppendUint64(m.zinfo, uint64(c.In))
	m.zinfo = binary.LittleEndian.AppendUint64(m.zinfo, uint64(c.Out))
	m.zinfo = append(m.zinfo, c.Bits)
	m.zinfo = append(m.zinfo, make([]byte, deflate.WindowSize-len(c.Window))...)
	m.zinfo = append(m.zinfo, c.Window...)
	return m.grow(checkpointSize)
}

func (m *maker) readTar(blob io.Reader) error {
	hasher := &rangeHasher{src: blob, size: m.options.SpanSize}
	if err := m.readEntries(hasher); err != nil {
		return err
	}
	m.digests, m.size = hasher.end()
	b := flatbuffers.NewBuilder(64)
	b.StartObject(3)
	b.PrependInt32Slot(tarVersion, tarZinfoVersion, 0)
	b.PrependInt64Slot(tarSpanSize, m.options.SpanSize, 0)
	b.PrependInt64Slot(tarSize, m.size, 0)
	b.Finish(b.EndObject())
	m.zinfo = b.FinishedBytes()
	return nil
}

// readEntries reads the plain layer to its end.
func (m *maker) readEntries(plain io.Reader) error {
	if m.options.Plain != nil {
		plain = io.TeeReader(plain, m.options.Plain)
	}
	counted := &counter{r: plain, limit: m.options.Limits.Bytes}
	archive := tar.NewReader(counted)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read entry %d: %w", len(m.files), err)
		}
		if err := m.addEntry(h, counted.n); err != nil {
			return fmt.Errorf("entry %q: %w", shorten(h.Name), err)
		}
	}
	m.plainSize = counted.n
	_, err := io.Copy(io.Discard, counted)
	return err
}

func (m *maker) addEntry(h *tar.Header, offset int64) error {
	if limit := m.options.Limits.Entries; limit > 0 && int64(len(m.files)) == limit {
		return &tree.LimitError{What: "entries", Limit: limit}
	}
	if _, known := names[h.Typeflag]; !known {
		return fmt.Errorf("SOCI knows no entries of type %q", h.Typeflag)
	}
	size := len(h.Name) + len(h.Linkname) + len(h.Uname) + len(h.Gname)
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, sparsePrefix) {
			return errSparse
		}
		size += 32 + len(key) + len(value)
	}
	m.files = append(m.files, file{h, offset})
	return m.grow(200 + size)
}

// grow counts bytes of the zTOC.
func (m *maker) grow(bytes int) error {
	if m.bytes += bytes; m.bytes > maxTable {
		return &tree.LimitError{What: "bytes of a zTOC", Limit: maxTable}
	}
	return nil
}

// counter counts bytes, and fails after limit bytes, unless limit is 0.
type counter struct {
	r        io.Reader
	n, limit int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.limit > 0 && c.n > c.limit {
		return 0, &tree.LimitError{What: "bytes", Limit: c.limit}
	}
	return n, err
}
