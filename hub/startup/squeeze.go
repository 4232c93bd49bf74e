package startup

import (
	"fmt"

	"github.com/klauspost/compress/zstd"

	"lighter/format/trace"
)

// encoder and decoder are shared: EncodeAll and DecodeAll are safe for concurrent
// use and hold no state between calls.
var (
	encoder = func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2))
		if err != nil {
			panic(err) // only impossible options
		}
		return e
	}()
	decoder = func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(2*trace.MaxText))
		if err != nil {
			panic(err) // only impossible options
		}
		return d
	}()
)

// squeeze compresses traces and recordings for the catalog.
func squeeze(plain []byte) []byte { return encoder.EncodeAll(plain, nil) }

func unsqueeze(b []byte) ([]byte, error) {
	plain, err := decoder.DecodeAll(b, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress what is kept of starts: %w", err)
	}
	return plain, nil
}
