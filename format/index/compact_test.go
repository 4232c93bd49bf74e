package index

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/test/testkit/golden"
)

// compacted returns the compact form of an index.
func compacted(t testing.TB, id chunk.ID, whole []byte) []byte {
	t.Helper()
	var extents, metadata, out bytes.Buffer
	if _, err := Receive(bytes.NewReader(whole), id, &extents, &metadata); err != nil {
		t.Fatal(err)
	}
	m, err := OpenMap(bytes.NewReader(extents.Bytes()), id, NewPages(64))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WriteCompact(&out, &metadata); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// expanded returns the index of a compact form.
func expanded(t testing.TB, id chunk.ID, compact []byte) ([]byte, error) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "index"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return expandedIn(t, file, id, compact)
}

// expandedIn is expanded with a file whose contents are replaced.
func expandedIn(t testing.TB, file *os.File, id chunk.ID, compact []byte) ([]byte, error) {
	t.Helper()
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if err := Expand(file, bytes.NewReader(compact), id); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return b, nil
}

// The compact form leads to the same bytes, and has little but the chunk IDs and half of the
// metadata image.
func TestCompact(t *testing.T) {
	for name, root := range map[string]func() (*Made, []byte){
		"sample": func() (*Made, []byte) { return made(t, sample(t)) },
		"many":   func() (*Made, []byte) { return made(t, many(t, 400)) },
		"empty":  func() (*Made, []byte) { return made(t, dir(t, nil)) },
	} {
		m, whole := root()
		b := compacted(t, m.ID(), whole)
		if got, err := expanded(t, m.ID(), b); err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%s: the index is not the same, %v", name, err)
		}
		if most := headerSize + m.MetadataSize/2 + m.Extents*(chunk.Size+6); int64(len(b)) > most {
			t.Errorf("%s: the compact form of %d extents has %d bytes, want at most %d", name, m.Extents, len(b), most)
		}
	}
}

// A wrong byte anywhere in a compact form is an error, and so is a missing one.
func TestEveryByteOfCompactIsVerified(t *testing.T) {
	m, whole := made(t, many(t, 60))
	b := compacted(t, m.ID(), whole)
	r := rand.New(rand.NewPCG(3, 3))
	for range 500 {
		changed := bytes.Clone(b)
		changed[r.IntN(len(b))] ^= 1 << r.IntN(8)
		if _, err := expanded(t, m.ID(), changed); err == nil {
			t.Fatal("a flipped bit was accepted")
		}
	}
	for _, n := range []int{0, 10, headerSize, headerSize + 1, headerSize + 20, len(b) - 1} {
		if _, err := expanded(t, m.ID(), b[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a compact form cut to %d bytes: %v, want that it ends too early", n, err)
		}
	}
	if _, err := expanded(t, m.ID(), append(b, 0)); err == nil {
		t.Error("an additional byte was accepted")
	}
	if _, err := expanded(t, id(1), b); err == nil {
		t.Error("another tree was accepted")
	}
}

// An index whose extents are not laid out as Make does has no compact form.
func TestCompactRefuses(t *testing.T) {
	l := newMapMaker()
	l.extent(Extent{Length: 10, First: true, ID: id(1)})
	l.extent(Extent{Offset: 100, Length: 10, First: true, ID: id(2)})
	l.next, l.header.MetadataSize = pageSize, 2*pageSize
	m, err := l.finish()
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if err := m.Write(&whole, bytes.NewReader(make([]byte, 2*pageSize))); err != nil {
		t.Fatal(err)
	}
	extents, err := OpenMap(bytes.NewReader(whole.Bytes()), m.ID(), NewPages(1))
	if err != nil {
		t.Fatal(err)
	}
	err = extents.WriteCompact(io.Discard, bytes.NewReader(nil))
	if err == nil || !strings.Contains(err.Error(), "extent 1 begins at 100") {
		t.Errorf("a file that begins inside a block: %v", err)
	}
}

// Every later version must read the golden file.
func TestCompactIsGolden(t *testing.T) {
	m, whole := made(t, sample(t))
	b := compacted(t, m.ID(), whole)
	golden.Compare(t, "compact.golden", fmt.Sprintf("tree ID %s\n%s", m.ID(), hex.Dump(b)))
}

func FuzzExpand(f *testing.F) {
	m, whole := made(f, sample(f))
	b := compacted(f, m.ID(), whole)
	f.Add(b)
	f.Add(b[:headerSize])
	file, err := os.Create(filepath.Join(f.TempDir(), "index")) // one for all runs, which make many
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { file.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		// The right tree ID for any header, so that the parts after it are reached.
		name := m.ID()
		if len(b) >= headerSize {
			name = chunk.Sum(b[:headerSize])
		}
		whole, err := expandedIn(t, file, name, b)
		if err != nil {
			return
		}
		if _, err := Receive(bytes.NewReader(whole), name, io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}
