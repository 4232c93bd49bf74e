package survey

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"testing"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
)

// BenchmarkRead compares with decompressing and hashing alone, and with what a hub does before it
// compresses. It reads the layer named by SURVEY_BENCH, or a sample. Compare figures of one run.
func BenchmarkRead(b *testing.B) {
	blob := gzipped(b, archive(b, regular("a", text(1, 32<<20))), 6, 1<<30, false)
	if name := os.Getenv("SURVEY_BENCH"); name != "" {
		var err error
		if blob, err = os.ReadFile(name); err != nil {
			b.Fatal(err)
		}
	}
	// hashed returns the plain bytes of the layer, and hashes both.
	hashed := func() (io.Reader, error) {
		z, err := compress.Layer(&summer{r: bytes.NewReader(blob), sum: sha256.New()})
		return &summer{r: z, sum: sha256.New()}, err
	}
	run := func(name string, read func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(blob)))
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("survey", func() error {
		_, err := Read(bytes.NewReader(blob), tree.Limits{}, func(*tree.Entry) error { return nil }, nil)
		return err
	})
	run("decompress and hash", func() error {
		r, err := hashed()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		return err
	})
	run("decompress, hash and split", func() error {
		r, err := hashed()
		if err != nil {
			return err
		}
		var contents tree.ContentReader
		content := func(e *tree.Entry, r io.Reader) error {
			return contents.Read(e, r, func(chunk.ID, []byte) error { return nil })
		}
		return tree.Scan(r, tree.Limits{}, content, func(*tree.Entry) error { return nil })
	})
}
