package index

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"lighter/format/chunk"
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
