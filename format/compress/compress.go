// Package compress chooses how Lighter uses zstd: the level, window, memory bound and number of
// goroutines of each encoder and decoder. Each kind of object has one function here, and so have
// the layers of images, which others have compressed. An encoder or decoder is for one goroutine at
// a time, unless its function says otherwise.
package compress

import (
	"errors"
	"io"
	"math/bits"

	"github.com/klauspost/compress/zstd"
)

const (
	// MaxWindow bounds the window of compressed indexes and locations, in bytes. A reader needs
	// that much memory. Hubs and mirrors use no larger window.
	MaxWindow = 8 << 20
	// maxLayerWindow bounds the window of an image's zstd layers, in bytes. It is the limit of the
	// zstd command without --long.
	maxLayerWindow = 128 << 20
)

// UnitEncoder returns an encoder for units of at most size plain bytes. Its EncodeAll writes no
// checksum: each chunk has a SHA-256.
func UnitEncoder(level zstd.EncoderLevel, size int) *zstd.Encoder {
	return encoder(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(size),
		zstd.WithEncoderCRC(false))
}

// UnitDecoder returns a decoder for units of at most size plain bytes. Its DecodeAll is safe for
// concurrent use.
func UnitDecoder(size int) *zstd.Decoder { return blockDecoder(size, 0) }

// TextEncoder returns an encoder for texts, such as recordings. Its EncodeAll is safe for
// concurrent use.
func TextEncoder() *zstd.Encoder { return encoder(nil, zstd.WithEncoderConcurrency(2)) }

// TextDecoder returns a decoder for texts of at most size plain bytes. Its DecodeAll is safe for
// concurrent use.
func TextDecoder(size int) *zstd.Decoder { return blockDecoder(size, 2) }

// IndexEncoder returns an encoder for an index or locations of about size plain bytes, which are
// compressed once and sent often. The encoder needs twice its window as memory, so small inputs
// get a small window.
func IndexEncoder(w io.Writer, size int64) *zstd.Encoder {
	return indexEncoder(w, size, zstd.SpeedBetterCompression)
}

// ArtifactEncoder is IndexEncoder for blobs that stay in a registry beside their image. It takes
// more time.
func ArtifactEncoder(w io.Writer, size int64) *zstd.Encoder {
	return indexEncoder(w, size, zstd.SpeedBestCompression)
}

func indexEncoder(w io.Writer, size int64, level zstd.EncoderLevel) *zstd.Encoder {
	window := min(max(1<<bits.Len64(uint64(size)), zstd.MinWindowSize), MaxWindow)
	return encoder(w, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(window))
}

// RecordEncoder returns an encoder for a layer record, which only the hub reads.
func RecordEncoder(w io.Writer) *zstd.Encoder {
	return encoder(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
}

// Reader returns a reader of an object that a hub or a mirror compressed. The caller closes it.
func Reader(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderMaxWindow(MaxWindow), zstd.WithDecoderConcurrency(2))
}

// ReadCloser returns what Reader returns, for an open object. Its Close closes r, too. If
// ReadCloser fails, it closes r.
func ReadCloser(r io.ReadCloser) (io.ReadCloser, error) {
	z, err := Reader(r)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &readCloser{z, r}, nil
}

type readCloser struct {
	*zstd.Decoder
	from io.Closer
}

func (r *readCloser) Close() error {
	r.Decoder.Close()
	return r.from.Close()
}

func encoder(w io.Writer, options ...zstd.EOption) *zstd.Encoder {
	e, err := zstd.NewWriter(w, options...)
	if err != nil {
		panic(err) // the options above are valid
	}
	return e
}

func blockDecoder(size, concurrency int) *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(concurrency), zstd.WithDecoderMaxMemory(uint64(size)))
	if err != nil {
		panic(err) // the options above are valid
	}
	return d
}
