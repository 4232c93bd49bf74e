package survey

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/layer"
	"lighter/format/tree"
)

// record returns the record of what a function emits.
func record(t testing.TB, scan func(emit func(*tree.Entry) error) error) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tree.NewRecordWriter(&b)
	if err := scan(w.Add); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// checkSurvey surveys a layer and reads all of its chunks from its units.
func checkSurvey(t testing.TB, blob, plain []byte) *layer.Table {
	t.Helper()
	chunks := map[chunk.ID]uint32{}
	var contents tree.ContentReader
	want := record(t, func(emit func(*tree.Entry) error) error {
		return tree.Scan(bytes.NewReader(plain), tree.Limits{}, func(e *tree.Entry, r io.Reader) error {
			return contents.Read(e, r, func(id chunk.ID, data []byte) error {
				chunks[id] = uint32(len(data))
				return nil
			})
		}, emit)
	})
	var s *Survey
	seen := map[chunk.ID]bool{}
	got := record(t, func(emit func(*tree.Entry) error) (err error) {
		s, err = Read(bytes.NewReader(blob), tree.Limits{}, emit, func(id chunk.ID, plain []byte) {
			if seen[id] || chunk.Sum(plain) != id || len(plain) != int(chunks[id]) {
				t.Errorf("saw chunk %s with %d bytes of %s", id.Short(), len(plain), chunk.Sum(plain).Short())
			}
			seen[id] = true
		})
		return err
	})
	if len(seen) != len(chunks) {
		t.Errorf("saw %d chunks, want %d", len(seen), len(chunks))
	}
	if !bytes.Equal(got, want) {
		t.Error("the record differs from that of the plain tar stream")
	}
	if s.Blob != sha256.Sum256(blob) || s.Size != int64(len(blob)) || s.DiffID != sha256.Sum256(plain) ||
		s.Plain != int64(len(plain)) {
		t.Errorf("blob %s with %d bytes, plain %s with %d", s.Blob.Short(), s.Size, s.DiffID.Short(), s.Plain)
	}
	table := open(t, s)
	found, stored := 0, int64(0)
	for n := range table.Units() {
		u, err := table.Unit(uint32(n))
		if err != nil {
			t.Fatal(err)
		}
		stored += u.Stored
		batch, err := u.Decode(blob[u.Offset:][:u.Stored])
		if err != nil {
			t.Fatalf("unit %d of %d: %v", n, table.Units(), err)
		}
		for i := range batch.Len() {
			ref := batch.Ref(i)
			if _, err := batch.Chunk(i); err != nil {
				t.Errorf("unit %d of %d, chunk %d: %v", n, table.Units(), i, err)
			}
			if in, known := s.Units[ref.ID]; !known || in != uint32(n) || chunks[ref.ID] != ref.Length {
				t.Errorf("unit %d has chunk %s with %d bytes, want unit %d and %d bytes", n, ref.ID.Short(), ref.Length,
					in, chunks[ref.ID])
			}
			found++
		}
	}
	if found != len(chunks) {
		t.Errorf("%d chunks in units, want %d", found, len(chunks))
	}
	if most := int64(len(blob))*5/4 + int64(table.Units())*32<<10; s.Format != compress.Zstd && stored > most {
		t.Errorf("%d units have %d of %d bytes, want at most %d", table.Units(), stored, len(blob), most)
	}
	return table
}

// open returns the table of a survey.
func open(t testing.TB, s *Survey) *layer.Table {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Table.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if s.Table.Size() != int64(b.Len()) {
		t.Errorf("Size says %d, the table has %d bytes", s.Table.Size(), b.Len())
	}
	table, err := layer.OpenTable(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestSurvey(t *testing.T) {
	plain := odd(t)
	for name, blob := range layers(t, plain) {
		if strings.HasPrefix(name, "tiny") { // of a part of the tar stream
			continue
		}
		t.Run(name, func(t *testing.T) {
			if table := checkSurvey(t, blob, plain); table.Units() < 3 {
				t.Errorf("%d units: this test shows too little", table.Units())
			}
		})
	}
}

// A stream of parts that are smaller than the places' distance.
func TestTinyParts(t *testing.T) {
	plain := archive(t, regular("large", noise(1, 1<<20), text(1, 1<<20)), regular("small", text(2, 1000)))
	checkSurvey(t, gzipped(t, plain, 6, 500, false), plain)
	checkSurvey(t, zstded(t, plain, 500), plain)
}

func TestSmallLayers(t *testing.T) {
	for _, plain := range [][]byte{archive(t), archive(t, regular("a")), archive(t, regular("a", noise(1, 600)))} {
		checkSurvey(t, plain, plain)
		checkSurvey(t, gzipped(t, plain, 6, 1<<20, false), plain)
		checkSurvey(t, zstded(t, plain, 1<<30), plain)
	}
	checkSurvey(t, nil, nil)
}

// Layers that have no place to begin.
func TestNoEntry(t *testing.T) {
	plain := archive(t, regular("a", text(1, 18<<20)))
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var streamed bytes.Buffer
	w.Reset(&streamed)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, blob := range map[string][]byte{
		"one segment":       zstded(t, plain, 1<<30),
		"one frame":         streamed.Bytes(),
		"a frame of 6 MB":   zstded(t, archive(t, regular("a", noise(1, 6<<20))), 1<<30),
		"a frame of 12 MB":  zstded(t, archive(t, regular("a", text(1, 12<<20))), 1<<30),
		"one deflate block": oneBlock(t),
		"a sparse file":     sparse(t),
	} {
		s, err := Read(bytes.NewReader(blob), tree.Limits{}, func(*tree.Entry) error { return nil }, nil)
		if refused := new(NoEntryError); s != nil || !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want a NoEntryError", name, err)
		}
	}
}

// A layer is cut off, exceeds its limits, or has bytes that are not valid.
func TestInvalidLayers(t *testing.T) {
	plain := archive(t, regular("a", noise(1, 800_000)), regular("b", text(1, 500_000)))
	failure := errors.New("failure")
	for name, blob := range layers(t, plain) {
		_, err := Read(bytes.NewReader(blob[:len(blob)-30]), tree.Limits{}, func(*tree.Entry) error { return nil }, nil)
		if name != "plain" && name != "frames" && err == nil {
			t.Errorf("%s, cut off: no error", name)
		}
		_, err = Read(bytes.NewReader(blob), tree.Limits{Bytes: 500_000}, func(*tree.Entry) error { return nil }, nil)
		if limit := new(tree.LimitError); !errors.As(err, &limit) {
			t.Errorf("%s: got %v, want a LimitError", name, err)
		}
		_, err = Read(bytes.NewReader(blob), tree.Limits{}, func(*tree.Entry) error { return failure }, nil)
		if !errors.Is(err, failure) {
			t.Errorf("%s: got %v, want the error of emit", name, err)
		}
		_, err = Read(io.MultiReader(bytes.NewReader(blob[:len(blob)/2]), iotest.ErrReader(failure)), tree.Limits{},
			func(*tree.Entry) error { return nil }, nil)
		if !errors.Is(err, failure) {
			t.Errorf("%s: got %v, want the error of the blob's reader", name, err)
		}
	}
	for _, blob := range [][]byte{gzipped(t, plain, 6, 50_000, false), zstded(t, plain, 50_000)} {
		blob[len(blob)/3] ^= 0x55
		_, err := Read(bytes.NewReader(blob), tree.Limits{}, func(*tree.Entry) error { return nil }, nil)
		if err == nil {
			t.Error("a changed byte was not found")
		}
	}
}

// What is known of a stream does not grow with it.
func TestPlacesAreBounded(t *testing.T) {
	var p places
	for at := int64(0); at < 64<<20; at += 100 {
		p.addEntry(entry{place: place{at, at}})
		p.addEnd(place{at + 50, at + 50})
		p.drop(at - chunk.ReadAhead)
		if from := max(0, at-chunk.ReadAhead); p.entry(from).plain > from {
			t.Fatalf("the entry for %d is at %d", from, p.entry(from).plain)
		}
		if most := chunk.ReadAhead/grain + 2; len(p.entries) > most || len(p.ends) > most {
			t.Fatalf("%d entries and %d ends at %d, want at most %d", len(p.entries), len(p.ends), at, most)
		}
	}
}

// A layer that can be read has units that can be decoded, whatever is in it.
func FuzzRead(f *testing.F) {
	plain := archive(f, regular("a", noise(1, 1000)), regular("b", text(1, 2000)))[:5<<10]
	for _, blob := range [][]byte{plain, gzipped(f, plain, 6, 3000, false), gzipped(f, plain, 1, 3000, true),
		zstded(f, plain, 1000), zstded(f, plain, 1<<20), sparse(f)} {
		f.Add(blob)
	}
	f.Fuzz(func(t *testing.T, blob []byte) {
		limits := tree.Limits{Entries: 1000, Bytes: 16 << 20}
		s, err := Read(bytes.NewReader(blob), limits, func(*tree.Entry) error { return nil }, nil)
		if err != nil {
			return
		}
		table := open(t, s)
		for n := range table.Units() {
			u, err := table.Unit(uint32(n))
			if err != nil {
				t.Fatal(err)
			}
			batch, err := u.Decode(blob[u.Offset:][:u.Stored])
			if err != nil {
				t.Fatalf("unit %d: %v", n, err)
			}
			for i := range batch.Len() {
				if _, err := batch.Chunk(i); err != nil {
					t.Fatalf("unit %d: %v", n, err)
				}
			}
		}
	})
}
