package soci

import (
	"errors"
	"fmt"
	"sort"

	"lighter/format/tree"
)

// Version is the version of zTOCs.
const Version = "0.9"

// Compression says how a layer is compressed. Its values are those of zTOCs.
type Compression int8

// The compressions that zTOCs know. There is none for zstd.
const (
	Gzip         Compression = 1
	Uncompressed Compression = 2
)

// String returns the compression's name in SOCI.
func (c Compression) String() string {
	switch c {
	case Gzip:
		return "gzip"
	case Uncompressed:
		return "uncompressed"
	}
	return fmt.Sprintf("compression %d", int8(c))
}

// Table is a decoded zTOC. It refers to the bytes that it was decoded from. It is safe for
// concurrent use.
type Table struct {
	data  []byte
	files list // of data; its buffer is not used
	spans []Span

	// Tool is the program that wrote the zTOC, as it calls itself.
	Tool string
	// Compression is that of the layer.
	Compression Compression
	// CompressedSize is the size of the layer's blob in bytes.
	CompressedSize int64
	// PlainSize is the size in bytes of the tar archive in the layer: up to its end marker, without
	// padding.
	PlainSize int64
	// SpanSize is how many plain bytes a span has, about.
	SpanSize int64
}

// Decode decodes a zTOC. limits.Entries bounds its entries, and limits.Bytes the plain bytes of the
// layer; the error wraps a *tree.LimitError if they exceed them. The result keeps data, which the
// caller must not change. Decode takes time in proportion to data, and memory only for spans, less
// than 200 bytes each.
func Decode(data []byte, limits tree.Limits) (*Table, error) {
	t, err := decode(data, limits)
	if err != nil {
		return nil, fmt.Errorf("decode a zTOC: %w", err)
	}
	return t, nil
}

// The fields of the schema's tables.
const (
	ztocVersion = iota
	ztocTool
	ztocCompressedSize
	ztocPlainSize
	ztocTOC
	ztocCompression
)

const tocMetadata = 0

const (
	compressionAlgorithm = iota
	compressionMaxSpan
	compressionDigests
	compressionCheckpoints
)

func decode(data []byte, limits tree.Limits) (*Table, error) {
	b := newBuffer(data)
	root := b.root()
	version := root.string(ztocVersion)
	t := &Table{data: data, Tool: root.string(ztocTool), CompressedSize: root.int64(ztocCompressedSize),
		PlainSize: root.int64(ztocPlainSize), files: root.table(ztocTOC).list(tocMetadata)}
	info := root.table(ztocCompression)
	t.Compression = Compression(info.int8(compressionAlgorithm, int8(Gzip)))
	switch {
	case b.err != nil:
		return nil, b.err
	case version != Version:
		return nil, fmt.Errorf("version %q, want %q", shorten(version), Version)
	case t.CompressedSize < 0 || t.PlainSize < 0:
		return nil, fmt.Errorf("a layer of %d bytes with an archive of %d", t.CompressedSize, t.PlainSize)
	case limits.Bytes > 0 && t.PlainSize > limits.Bytes:
		return nil, &tree.LimitError{What: "bytes", Limit: limits.Bytes}
	case limits.Entries > 0 && int64(t.files.n) > limits.Entries:
		return nil, &tree.LimitError{What: "entries", Limit: limits.Entries}
	}
	if err := t.readSpans(b, info); err != nil {
		return nil, err
	}
	return t, t.checkEntries()
}

// readSpans reads the part of a zTOC that says how the layer is decompressed.
func (t *Table) readSpans(b *buffer, info table) error {
	digests := info.list(compressionDigests)
	zinfo := info.raw(compressionCheckpoints)
	if b.err != nil {
		return b.err
	}
	if count := int64(info.int32(compressionMaxSpan)) + 1; count != int64(digests.n) || count == 0 {
		return fmt.Errorf("%d spans with %d digests", count, digests.n)
	}
	var err error
	switch t.Compression {
	case Gzip:
		err = t.readGzip(zinfo, digests.n)
	case Uncompressed:
		err = t.readTar(zinfo, digests.n)
	default:
		err = errors.New("it is not supported")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.Compression, err)
	}
	for i := range t.spans {
		s := digests.string(i)
		if b.err != nil {
			return b.err
		}
		if t.spans[i].Digest, err = parseDigest(s); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
	}
	return nil
}

// Spans returns the number of spans.
func (t *Table) Spans() int { return len(t.spans) }

// Span returns a span, 0 ≤ i < t.Spans().
func (t *Table) Span(i int) Span { return t.spans[i] }

// SpanAt returns the span that has a plain byte, 0 ≤ offset < t.PlainSize.
func (t *Table) SpanAt(offset int64) int {
	return sort.Search(len(t.spans), func(i int) bool { return t.spans[i].Plain.End > offset })
}

// Entries returns the number of entries.
func (t *Table) Entries() int { return t.files.n }

// shorten returns the beginning of a string for an error.
func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
