package compress

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

// maxPartWindow bounds the window of a zstd frame within a layer, in bytes. A part of a layer is
// small, but its frame may name the window of its encoder's level: 32 MiB at most in the encoders
// that write such layers.
const maxPartWindow = 32 << 20

var (
	gzipParts = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zstdParts = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxPartWindow))
		if err != nil {
			panic(err) // the options above are valid
		}
		return d
	}}
)

// GzipPart returns the plain bytes of a part of a layer that consists of gzip members. It keeps
// readers for the next call: the caller closes the result once. The error of a reader is a
// *chunk.InvalidError if the part is damaged, or ends too early. Otherwise it is that of r.
func GzipPart(r io.Reader) (io.ReadCloser, error) {
	z, from := gzipParts.Get().(*gzip.Reader), &noted{r: r}
	if err := z.Reset(from); err != nil {
		gzipParts.Put(z)
		return nil, from.blame(err)
	}
	return &part{z, from, func() { gzipParts.Put(z) }}, nil
}

// ZstdPart returns the plain bytes of a part of a layer that consists of zstd frames, as GzipPart
// does.
func ZstdPart(r io.Reader) (io.ReadCloser, error) {
	z, from := zstdParts.Get().(*zstd.Decoder), &noted{r: r}
	if err := z.Reset(from); err != nil {
		return nil, from.blame(err)
	}
	return &part{z, from, func() {
		if z.Reset(nil) == nil { // drops the reference to r
			zstdParts.Put(z)
		}
	}}, nil
}

// PartDecoder returns a decoder for parts of a layer that consist of zstd frames. It is UnitDecoder
// with room for frames that name a larger window than they fill: the library allows no window that
// is larger than what may be decoded.
func PartDecoder() *zstd.Decoder { return UnitDecoder(maxPartWindow) }

type part struct {
	decoder io.Reader
	from    *noted
	release func()
}

func (p *part) Read(b []byte) (int, error) {
	n, err := p.decoder.Read(b)
	if err != nil && err != io.EOF {
		err = p.from.blame(err)
	}
	return n, err
}

func (p *part) Close() error {
	p.release()
	return nil
}

// noted reads a compressed part, and notes the error that ends it.
type noted struct {
	r   io.Reader
	err error // nil after io.EOF
}

func (n *noted) Read(b []byte) (int, error) {
	got, err := n.r.Read(b)
	if err != nil && err != io.EOF {
		n.err = err
	}
	return got, err
}

// blame returns the error of a decoder: about the bytes, unless they could not be read.
func (n *noted) blame(err error) error {
	if n.err == nil {
		err = &chunk.InvalidError{What: "compressed part", Err: err}
	}
	return fmt.Errorf("decompress: %w", err)
}

// GzipMember returns a function that compresses plain bytes as one gzip member, at a level of
// 1 (fastest) to 9. It is safe for concurrent use.
func GzipMember(level int) func(plain []byte) ([]byte, error) {
	writers := sync.Pool{New: func() any {
		w, err := gzip.NewWriterLevel(nil, level)
		if err != nil {
			return err
		}
		return w
	}}
	return func(plain []byte) ([]byte, error) {
		w, ok := writers.Get().(*gzip.Writer)
		if !ok {
			return nil, fmt.Errorf("gzip has no level %d", level)
		}
		defer writers.Put(w)
		var b bytes.Buffer
		w.Reset(&b)
		if _, err := w.Write(plain); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	}
}

// ZstdFrame returns a function that compresses plain bytes as one zstd frame. It is safe for
// concurrent use by as many goroutines as concurrency says; others wait.
func ZstdFrame(level zstd.EncoderLevel, concurrency int) func(plain []byte) ([]byte, error) {
	e := encoder(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(concurrency),
		zstd.WithWindowSize(MaxWindow))
	return func(plain []byte) ([]byte, error) { return e.EncodeAll(plain, nil), nil }
}
