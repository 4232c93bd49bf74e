package startup

import (
	"fmt"

	"lighter/format/compress"
	"lighter/format/trace"
)

var textEncoder, textDecoder = compress.TextEncoder(), compress.TextDecoder(2 * trace.MaxText)

// compressText compresses traces and recordings for the catalog.
func compressText(plain []byte) []byte { return textEncoder.EncodeAll(plain, nil) }

func decompressText(b []byte) ([]byte, error) {
	plain, err := textDecoder.DecodeAll(b, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress recordings: %w", err)
	}
	return plain, nil
}
