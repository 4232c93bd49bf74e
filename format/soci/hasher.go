package soci

import (
	"crypto/sha256"
	"hash"
	"io"
	"slices"

	"lighter/format/deflate"
)

// spanHasher reads a layer's blob and hashes its spans. Where a span ends is known only after more
// bytes were read, so it keeps the last bytes.
type spanHasher struct {
	src     io.Reader
	span    hash.Hash // of the current span; nil before the first
	recent  []byte    // bytes that were read and not hashed
	at      int64     // offset of recent in the blob
	digests []Digest
}

// Read implements io.Reader.
func (h *spanHasher) Read(p []byte) (int, error) {
	n, err := h.src.Read(p)
	h.recent = append(h.recent, p[:n]...)
	// A checkpoint may begin a byte before what was not decoded yet.
	if spare := len(h.recent) - deflate.ReadAhead - 1; spare > deflate.ReadAhead {
		h.advance(spare)
	}
	return n, err
}

// advance hashes the next n bytes.
func (h *spanHasher) advance(n int) {
	if h.span != nil {
		h.span.Write(h.recent[:n])
	}
	h.recent = slices.Delete(h.recent, 0, n)
	h.at += int64(n)
}

// cut ends the current span before end, and begins the next one at start, which is end or a byte
// less. What comes before the first cut is no span.
func (h *spanHasher) cut(start, end int64) {
	h.advance(int(start - h.at))
	if h.span != nil {
		h.span.Write(h.recent[:end-start])
		h.digests = append(h.digests, Digest(h.span.Sum(nil)))
	}
	h.span = sha256.New()
}

// end ends the last span. It returns the spans' digests, and the number of bytes of the blob.
func (h *spanHasher) end() ([]Digest, int64) {
	h.advance(len(h.recent))
	return append(h.digests, Digest(h.span.Sum(nil))), h.at
}

// rangeHasher reads a blob and hashes each size bytes of it.
type rangeHasher struct {
	src     io.Reader
	size    int64
	span    hash.Hash
	at      int64 // in the blob
	digests []Digest
}

// Read implements io.Reader.
func (h *rangeHasher) Read(p []byte) (int, error) {
	n, err := h.src.Read(p[:min(int64(len(p)), h.size-h.at%h.size)])
	if n == 0 {
		return 0, err
	}
	if h.at%h.size == 0 {
		h.cut()
		h.span = sha256.New()
	}
	h.span.Write(p[:n])
	h.at += int64(n)
	return n, err
}

func (h *rangeHasher) cut() {
	if h.span != nil {
		h.digests = append(h.digests, Digest(h.span.Sum(nil)))
	}
}

// end returns the digests of all parts, and the number of bytes.
func (h *rangeHasher) end() ([]Digest, int64) {
	h.cut()
	return h.digests, h.at
}
