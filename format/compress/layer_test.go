package compress

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"testing"
)

// A layer is recognized as gzip by the same three bytes as in containerd. A tar whose first name
// begins with two of them is not decompressed.
func TestLayerRecognizesGzip(t *testing.T) {
	archive := func(name string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: name, Format: tar.FormatGNU}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	zipped := func(plain []byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	odd, usual := archive("\x1f\x8b\x09name"), archive("name")
	for what, c := range map[string]struct{ blob, want []byte }{
		"plain":                  {usual, usual},
		"gzip":                   {zipped(usual), usual},
		"name like gzip":         {odd, odd},
		"gzip of name like gzip": {zipped(odd), odd},
		"shorter than a magic":   {[]byte{0x1f, 0x8b}, []byte{0x1f, 0x8b}},
		"empty":                  {nil, []byte{}},
	} {
		r, err := Layer(bytes.NewReader(c.blob))
		if err != nil {
			t.Errorf("%s: Layer returned %v", what, err)
			continue
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: got %d bytes, %v, want %d", what, len(got), err, len(c.want))
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: close: %v", what, err)
		}
	}
}
