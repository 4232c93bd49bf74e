package startup

import (
	"fmt"

	"lighter/format/compress"
	"lighter/format/trace"
)

var textEncoder, textDecoder = compress.TextEncoder(), compress.TextDecoder(2 * trace.MaxText)

// squeeze compresses traces and recordings for the catalog.
func squeeze(plain []byte) []byte { return textEncoder.EncodeAll(plain, nil) }

func unsqueeze(b []byte) ([]byte, error) {
	plain, err := textDecoder.DecodeAll(b, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress what is kept of starts: %w", err)
	}
	return plain, nil
}
