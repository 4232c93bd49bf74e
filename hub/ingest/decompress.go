package ingest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"

	"lighter/format/compress"
)

// Media types of layers.
const (
	ociLayer    = "application/vnd.oci.image.layer.v1.tar"
	ociForeign  = "application/vnd.oci.image.layer.nondistributable.v1.tar"
	dockerLayer = "application/vnd.docker.image.rootfs.diff.tar"
	dockerOther = "application/vnd.docker.image.rootfs.foreign.diff.tar"
)

// compression says what a layer's media type lets its bytes be.
type compression int

const (
	notALayer  compression = iota
	foreign                // a layer that is not to be copied
	plain                  // a tar stream
	compressed             // whatever its first bytes say, as containerd takes it
)

func compressionOf(mediaType string) compression {
	switch mediaType {
	case ociLayer:
		return plain
	case ociLayer + "+gzip", ociLayer + "+zstd", dockerLayer, dockerLayer + ".gzip", dockerLayer + ".zstd":
		return compressed
	case ociForeign, ociForeign + "+gzip", ociForeign + "+zstd", dockerOther, dockerOther + ".gzip":
		return foreign
	}
	return notALayer
}

// decompress returns the tar stream of a layer. The caller closes it.
func decompress(r io.Reader, c compression) (io.ReadCloser, error) {
	if c == plain {
		return io.NopCloser(r), nil
	}
	in := bufio.NewReaderSize(r, 64<<10)
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		return z, nil
	case isZstd(magic):
		z, err := compress.LayerReader(in)
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// isZstd tells whether a zstd frame starts with these bytes, or one that
// decoders skip.
func isZstd(magic []byte) bool {
	return bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}
