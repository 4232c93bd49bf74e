package layer

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"lighter/format/compress"
	"lighter/format/deflate"
)

// inflaters are readers of gzip members, with 160 KiB each.
var inflaters = sync.Pool{New: func() any { return deflate.NewReader(nil) }}

// gunzip returns the first n plain bytes of gzip members.
func gunzip(from io.Reader, n int64) ([]byte, error) {
	r := inflaters.Get().(*deflate.Reader)
	defer inflaters.Put(r)
	r.Reset(from)
	return readPlain(r, n)
}

// inflate returns the first n plain bytes from a block inside a gzip member on.
func (u *Unit) inflate(from io.Reader, n int64) ([]byte, error) {
	c := deflate.Checkpoint{Bits: u.Bits, Out: int64(len(u.Window)), Window: u.Window}
	if u.Bits > 0 {
		c.In = 1
	}
	r := inflaters.Get().(*deflate.Reader)
	defer inflaters.Put(r)
	if err := r.Resume(from, c); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return readPlain(r, n)
}

func readPlain(r *deflate.Reader, n int64) ([]byte, error) {
	plain := make([]byte, n)
	if got, err := io.ReadFull(r, plain); err != nil {
		return nil, fmt.Errorf("decompress: after %d of %d plain bytes: %w", got, n, err)
	}
	return plain, nil
}

// zstdDecoder decodes the frames of a part, which may have more plain bytes than count.
var zstdDecoder = compress.PartDecoder()

// unzstd returns the first n plain bytes of zstd frames.
func unzstd(stored []byte, n int64) ([]byte, error) {
	plain, err := zstdDecoder.DecodeAll(stored, make([]byte, 0, n))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	if int64(len(plain)) < n {
		return nil, fmt.Errorf("decompress: %d plain bytes, want %d", len(plain), n)
	}
	if cap(plain) > int(n) { // so that the rest is not kept
		plain = bytes.Clone(plain[:n])
	}
	return plain, nil
}
