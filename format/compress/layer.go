package compress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// A LayerFormat says how a layer is compressed.
type LayerFormat uint8

// The formats of layers.
const (
	Uncompressed LayerFormat = iota
	Gzip
	Zstd
)

// FormatOf returns the format of a layer that begins with these bytes, at least 4 if it has as
// many. These are the same first bytes as in containerd: a node without the hub unpacks what
// containerd sees, and the hub has to see the same.
func FormatOf(magic []byte) LayerFormat {
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b, 0x08}):
		return Gzip
	case isZstd(magic):
		return Zstd
	}
	return Uncompressed
}

// Layer returns the tar stream of an image's layer, which may be compressed. The caller closes it.
// Layer recognizes compressed layers as FormatOf does.
func Layer(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch FormatOf(magic) {
	case Gzip:
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		return z, nil
	case Zstd:
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxLayerWindow),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// isZstd reports whether these bytes begin a zstd frame or a skippable frame.
func isZstd(magic []byte) bool {
	return bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}
