package push

import (
	"errors"
	"io"
	"testing"

	"github.com/opencontainers/go-digest"
)

// A blob's file has the name of its digest, and the blob opens it. An error of the writer is passed
// on.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the same blob again
		b, err := WriteFile(dir, "text/plain", func(to io.Writer) error {
			_, err := io.WriteString(to, "text")
			return err
		})
		if err != nil || b.Digest != digest.FromString("text") || b.Size != 4 || b.MediaType != "text/plain" {
			t.Fatalf("blob %+v, %v", b.Descriptor, err)
		}
		file, err := b.Open()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(file)
		if err = errors.Join(err, file.Close()); err != nil || string(got) != "text" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	want := errors.New("want")
	if _, err := WriteFile(dir, "", func(io.Writer) error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
