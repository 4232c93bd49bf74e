package soci

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"lighter/format/deflate"
)

// Range is a part of a layer: the bytes from Start to before End.
type Range struct{ Start, End int64 }

// Len returns the number of bytes.
func (r Range) Len() int64 { return r.End - r.Start }

// Digest is a SHA-256.
type Digest [sha256.Size]byte

// String returns the digest as OCI writes it.
func (d Digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

const digestPrefix = "sha256:"

func parseDigest(s string) (Digest, error) {
	text, ok := strings.CutPrefix(s, digestPrefix)
	b, err := hex.DecodeString(text)
	if !ok || err != nil || len(b) != sha256.Size || strings.ToLower(text) != text {
		return Digest{}, fmt.Errorf("digest %q, want %s and 64 digits", shorten(s), digestPrefix)
	}
	return Digest(b), nil
}

// Span is a part of a layer that can be decompressed by itself. Neighbours share the byte in which
// one ends and the other begins.
//
// Hazard: a span has to be fetched as a whole before it can be verified, and a zTOC may have spans
// of any length. The caller decides which lengths it accepts.
type Span struct {
	Compressed Range  // in the layer's blob
	Plain      Range  // in the plain layer; it may be empty
	Digest     Digest // of the compressed bytes

	compression Compression
	point       deflate.Checkpoint // of gzip
	last        bool
}

// Checkpoint returns the beginning of a span of a gzip layer. The window is a part of the zTOC.
func (s Span) Checkpoint() deflate.Checkpoint { return s.point }

// Open returns a reader of the span's plain bytes, after it has verified its compressed bytes. The
// reader returns exactly s.Plain.Len() bytes, otherwise an error. It is an error, too, if the
// compressed bytes have more plain bytes. Only the last span may, as an archive may be padded.
//
// Memory: the reader keeps the compressed bytes, and needs about 200 KiB.
func (s Span) Open(compressed []byte) (io.Reader, error) {
	if int64(len(compressed)) != s.Compressed.Len() {
		return nil, fmt.Errorf("open the span at byte %d: got %d bytes, want %d", s.Compressed.Start, len(compressed),
			s.Compressed.Len())
	}
	if got := Digest(sha256.Sum256(compressed)); got != s.Digest {
		return nil, fmt.Errorf("open the span at byte %d: its digest is %s, want %s", s.Compressed.Start, got, s.Digest)
	}
	src := bytes.NewReader(compressed)
	if s.compression == Uncompressed {
		return src, nil
	}
	r, err := deflate.Resume(src, s.point)
	if err != nil {
		return nil, fmt.Errorf("open the span at byte %d: %w", s.Compressed.Start, err)
	}
	return &spanReader{s, r, s.Plain.Len()}, nil
}

// spanReader reads the plain bytes of a span.
type spanReader struct {
	span Span
	r    *deflate.Reader
	left int64
}

// Read implements io.Reader.
func (r *spanReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.left == 0 {
		return 0, r.end()
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if err == io.EOF && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, r.wrap(err)
	}
	return n, nil
}

// end returns io.EOF if there are no more plain bytes.
func (r *spanReader) end() error {
	if r.span.last {
		return io.EOF
	}
	// The next span begins with the next block. What is left of this span are bits of that block's
	// header, so reading on ends without another byte.
	n, err := r.r.Read(make([]byte, 1))
	switch {
	case n > 0:
		return r.wrap(fmt.Errorf("it has more than %d plain bytes", r.span.Plain.Len()))
	case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
		return io.EOF
	}
	return r.wrap(err)
}

func (r *spanReader) wrap(err error) error {
	return fmt.Errorf("decompress the span at byte %d: %w", r.span.Compressed.Start, err)
}
