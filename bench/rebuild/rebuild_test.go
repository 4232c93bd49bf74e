package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// archive returns a tar stream of some files, with a long name and bytes after its end.
func archive(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	random := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("compress the same bytes with each of them and look whether the output is equal")
	for i := range 40 {
		var text strings.Builder
		for range random.IntN(20_000) {
			text.WriteString(words[random.IntN(len(words))] + " ")
		}
		h := tar.Header{Name: fmt.Sprintf("dir/file-%d", i), Mode: 0o644, Size: int64(text.Len())}
		if i == 7 {
			h.Name = strings.Repeat("long/", 60) + "name" // needs a PAX header
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text.String()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b.Write(make([]byte, 8192))
	return b.Bytes()
}

// writeLayout writes an OCI layout with one layer.
func writeLayout(t *testing.T, layer []byte, mediaType string) string {
	t.Helper()
	dir := t.TempDir()
	put := func(data []byte) string {
		sum := sha256.Sum256(data)
		path := filepath.Join(dir, "blobs/sha256", hex.EncodeToString(sum[:]))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	manifest := fmt.Sprintf(`{"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`, mediaType, put(layer), len(layer))
	index := fmt.Sprintf(`{"manifests":[{"digest":%q,"size":%d}]}`, put([]byte(manifest)), len(manifest))
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each compressor is recognized by its output, even if the gzip header is that of another program.
func TestCompressorsAreRecognized(t *testing.T) {
	stream := archive(t)
	for _, c := range compressors {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			w, err := c.open(&b)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(stream); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			layer := b.Bytes()
			if c.format == formatGzip {
				layer[3] = 8 // a file name follows
				layer = append(append(bytes.Clone(layer[:10]), "layer.tar\x00"...), layer[10:]...)
			}
			layout := writeLayout(t, layer, "application/vnd.oci.image.layer.v1.tar+"+string(c.format))
			blobs, err := findLayers([]string{layout})
			if err != nil || len(blobs) != 1 {
				t.Fatalf("layers: got %d (%v), want 1", len(blobs), err)
			}
			r, err := blobs[0].measure([]compressor{c})
			if err != nil || r.Compressor != c.name || r.Tar != int64(len(stream)) {
				t.Errorf("measure: got %+v (%v), want compressor %s and %d bytes of tar", r, err, c.name, len(stream))
			}
			other := slices.IndexFunc(compressors, func(o compressor) bool {
				return o.format == c.format && o.name != c.name
			})
			if r, err := blobs[0].measure(compressors[other : other+1]); err != nil || r.Compressor != "" {
				t.Errorf("measure with another compressor: got %+v (%v), want no compressor", r, err)
			}
		})
	}
}

// A blob is not recognized as the compressor's output if it differs in one bit, or has one byte
// less or one byte more.
func TestDifferentBlobs(t *testing.T) {
	stream := archive(t)
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(stream)
	w.Close()
	body := b.Bytes()[10:]
	changed := bytes.Clone(body)
	changed[len(changed)/2] ^= 1
	for name, blob := range map[string][]byte{
		"changed": changed, "shorter": body[:len(body)-1], "longer": append(bytes.Clone(body), 0),
	} {
		_, equal, err := compare(goGzip(6), bytes.NewReader(stream), bufio.NewReader(bytes.NewReader(blob)))
		if equal || err != nil {
			t.Errorf("blob %s: got equal %t (%v), want false", name, equal, err)
		}
	}
}

// The stream can be made again from the skeleton and the contents.
func TestSkeleton(t *testing.T) {
	stream := archive(t)
	var parts, contents bytes.Buffer
	total, err := skeleton(bytes.NewReader(stream), &parts, &contents)
	if err != nil || total != int64(len(stream)) {
		t.Fatalf("length of the stream: got %d (%v), want %d", total, err, len(stream))
	}
	if parts.Len() > 60_000 {
		t.Errorf("the skeleton has %d bytes, want at most 60,000", parts.Len())
	}
	var again bytes.Buffer
	for parts.Len() > 0 {
		for _, from := range []*bytes.Buffer{&parts, &contents} {
			n, err := binary.ReadUvarint(&parts)
			if err != nil {
				t.Fatal(err)
			}
			again.Write(from.Next(int(n)))
		}
	}
	if !bytes.Equal(again.Bytes(), stream) {
		t.Error("the stream that was made again differs from the original")
	}
}
