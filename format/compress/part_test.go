package compress

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
)

// A part is read from its first member to its last one. A reader that is used again has nothing of
// the previous part.
func TestParts(t *testing.T) {
	zipped := func(text string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	framed := func(text string) []byte { return encoder(nil).EncodeAll([]byte(text), nil) }
	for name, kind := range map[string]struct {
		open   func(io.Reader) (io.ReadCloser, error)
		encode func(string) []byte
	}{"gzip": {GzipPart, zipped}, "zstd": {ZstdPart, framed}} {
		for range 3 {
			r, err := kind.open(bytes.NewReader(append(kind.encode("one "), kind.encode("two")...)))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); string(got) != "one two" || err != nil {
				t.Errorf("%s: got %q, %v, want %q", name, got, err, "one two")
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			r, err = kind.open(bytes.NewReader([]byte("neither, but long enough")))
			if err != nil {
				continue
			}
			if got, err := io.ReadAll(r); err == nil {
				t.Errorf("%s: got %q of what is not compressed, want an error", name, got)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A damaged or truncated part is an InvalidError. What keeps the part from being read is not.
func TestDamagedParts(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	text := bytes.Repeat([]byte("a text that is long enough "), 100)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	read := func(open func(io.Reader) (io.ReadCloser, error), from io.Reader) error {
		r, err := open(from)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r)
		return errors.Join(err, r.Close())
	}
	for name, kind := range map[string]struct {
		open   func(io.Reader) (io.ReadCloser, error)
		stored []byte
	}{"gzip": {GzipPart, zipped.Bytes()}, "zstd": {ZstdPart, encoder(nil).EncodeAll(text, nil)}} {
		half := kind.stored[:len(kind.stored)/2]
		damaged := bytes.Clone(kind.stored)
		damaged[len(damaged)/2] ^= 0xff
		for what, b := range map[string][]byte{"damaged": damaged, "truncated": half, "foreign": text} {
			if err := read(kind.open, bytes.NewReader(b)); !errors.As(err, new(*chunk.InvalidError)) {
				t.Errorf("%s, %s: %v, want an InvalidError", name, what, err)
			}
		}
		broken := errors.New("the connection broke")
		for _, some := range [][]byte{half, nil} {
			err := read(kind.open, io.MultiReader(bytes.NewReader(some), iotest.ErrReader(broken)))
			if !errors.Is(err, broken) || errors.As(err, new(*chunk.InvalidError)) {
				t.Errorf("%s, after %d bytes: %v, want %v", name, len(some), err, broken)
			}
		}
	}
}

// A frame may not make a reader allocate any window.
func TestPartsHaveABoundedWindow(t *testing.T) {
	for size, ok := range map[int]bool{maxPartWindow: true, 2 * maxPartWindow: false} {
		var b bytes.Buffer
		w := encoder(&b, zstd.WithWindowSize(size))
		for range 2 {
			if _, err := w.Write(bytes.Repeat([]byte("text"), size/4)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := ZstdPart(&b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, r, 10); (err == nil) != ok {
			t.Errorf("window of %d bytes: got %v, want success: %t", size, err, ok)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Writers that do not know the size of a file before its end name the whole window of their level.
func TestSmallPartsWithALargeWindow(t *testing.T) {
	for size, ok := range map[int]bool{maxPartWindow: true, 2 * maxPartWindow: false} {
		var b bytes.Buffer
		w := encoder(&b, zstd.WithWindowSize(size))
		for range 2 {
			if _, err := w.Write([]byte("text")); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := PartDecoder().DecodeAll(b.Bytes(), nil); ok != (err == nil && string(got) == "texttext") {
			t.Errorf("window of %d bytes: got %q, %v, want success: %t", size, got, err, ok)
		}
	}
}
