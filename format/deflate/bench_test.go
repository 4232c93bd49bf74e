package deflate

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"
)

// benchStream returns a stream to measure with: the file named by DEFLATE_BENCH, or a sample.
func benchStream(b *testing.B) []byte {
	b.Helper()
	if name := os.Getenv("DEFLATE_BENCH"); name != "" {
		stream, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return stream
	}
	return compress(b, sample(16<<20), 6)
}

func benchmark(b *testing.B, open func(io.Reader) (io.Reader, error)) {
	stream := benchStream(b)
	b.ReportAllocs()
	for b.Loop() {
		r, err := open(bytes.NewReader(stream))
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(n)
	}
}

// BenchmarkReader compares with the other readers of gzip. Compare figures of one run.
func BenchmarkReader(b *testing.B) {
	b.Run("this", func(b *testing.B) {
		benchmark(b, func(r io.Reader) (io.Reader, error) { return NewReader(r), nil })
	})
	b.Run("indexer", func(b *testing.B) {
		benchmark(b, func(r io.Reader) (io.Reader, error) {
			return NewIndexer(r, 4<<20, func(Checkpoint) error { return nil }), nil
		})
	})
	b.Run("klauspost", func(b *testing.B) {
		benchmark(b, func(r io.Reader) (io.Reader, error) { return kgzip.NewReader(r) })
	})
	b.Run("standard", func(b *testing.B) {
		benchmark(b, func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) })
	})
}
