package index

import (
	"bytes"
	"io"
	"testing"

	"lighter/format/tree"
)

// bytesAt is a file that counts how often its bytes are written.
type bytesAt struct {
	b      []byte
	writes []int // of each byte
}

func (f *bytesAt) WriteAt(p []byte, at int64) (int, error) {
	if missing := int(at) + len(p) - len(f.b); missing > 0 {
		f.b, f.writes = append(f.b, make([]byte, missing)...), append(f.writes, make([]int, missing)...)
	}
	for i := range p {
		f.writes[int(at)+i]++
	}
	return copy(f.b[at:], p), nil
}

// MakeAt writes what Make and Write write, and each byte once.
func TestMakeAt(t *testing.T) {
	var metadata, want bytes.Buffer
	m, err := Make(&tree.Tree{Root: sample(t)}, &metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Write(&want, &metadata); err != nil {
		t.Fatal(err)
	}
	var file bytesAt
	at, err := MakeAt(&tree.Tree{Root: sample(t)}, &file)
	if err != nil || at.ID() != m.ID() || !bytes.Equal(file.b, want.Bytes()) {
		t.Errorf("MakeAt made another index of %d bytes, want %d: %v", len(file.b), want.Len(), err)
	}
	for i, n := range file.writes {
		if n != 1 {
			t.Fatalf("byte %d of %d was written %d times", i, len(file.b), n)
		}
	}
	if _, err := MakeAt(&tree.Tree{Root: sample(t)}, failing{}); err == nil {
		t.Error("a file that cannot be written made no error")
	}
}

// failing is a file that cannot be written.
type failing struct{}

func (failing) WriteAt([]byte, int64) (int, error) { return 0, io.ErrClosedPipe }
