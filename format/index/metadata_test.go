package index

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"lighter/format/chunk"
	"lighter/format/erofs"
	"lighter/format/tree"
)

func TestCheckMetadata(t *testing.T) {
	var metadata bytes.Buffer
	m, err := Make(&tree.Tree{Root: sample(t)}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	check := func(h Header, b []byte) error { return h.CheckMetadata(t.Context(), bytes.NewReader(b)) }
	if err := check(m.Header, metadata.Bytes()); err != nil {
		t.Fatal(err)
	}
	files, size := m.Header, m.Header
	files.Files++
	size.Bytes--
	broken := bytes.Clone(metadata.Bytes())
	broken[pageSize+5] = 0xff // the mode of the root
	for name, err := range map[string]error{
		"more files":  check(files, metadata.Bytes()),
		"fewer bytes": check(size, metadata.Bytes()),
		"broken":      check(m.Header, broken),
	} {
		if invalid := new(chunk.InvalidError); !errors.As(err, &invalid) {
			t.Errorf("%s: got %v, want an InvalidError", name, err)
		}
	}
	// A read error or a cancelled context does not make the image invalid.
	ended, end := context.WithCancel(t.Context())
	end()
	for want, err := range map[error]error{
		io.ErrUnexpectedEOF: check(m.Header, metadata.Bytes()[:pageSize]),
		context.Canceled:    m.CheckMetadata(ended, bytes.NewReader(metadata.Bytes())),
	} {
		if invalid := new(chunk.InvalidError); !errors.Is(err, want) || errors.As(err, &invalid) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// The number of inodes is that of the whole tree. A broken image has none.
func TestInodes(t *testing.T) {
	var metadata bytes.Buffer
	m, err := Make(&tree.Tree{Root: sample(t)}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.Open(bytes.NewReader(metadata.Bytes()), m.MetadataSize)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := image.Walk(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := m.Inodes(bytes.NewReader(metadata.Bytes())); err != nil || int64(n) != stats.Inodes {
		t.Errorf("%d inodes, %v, want %d", n, err, stats.Inodes)
	}
	if _, err := m.Inodes(bytes.NewReader(make([]byte, m.MetadataSize))); !errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("zeros: %v, want an InvalidError", err)
	}
	if _, err := m.Inodes(bytes.NewReader(nil)); err == nil || errors.As(err, new(*chunk.InvalidError)) {
		t.Errorf("nothing: %v, want an error of the reader", err)
	}
}
