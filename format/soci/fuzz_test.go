package soci

import (
	"bytes"
	"crypto/sha256"
	"io"
	"testing"

	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

func FuzzDecode(f *testing.F) {
	for _, g := range examples {
		_, ztoc := g.read(f)
		f.Add(ztoc)
	}
	f.Fuzz(func(t *testing.T, ztoc []byte) {
		table, err := Decode(ztoc, tree.Limits{Entries: 1e6, Bytes: 1 << 40})
		if err != nil {
			return
		}
		source := table.Layer(func(e *tree.Entry, offset int64) error {
			if offset < 0 || e.Size > table.PlainSize-offset {
				t.Errorf("%q has %d bytes at %d of %d", e.Name, e.Size, offset, table.PlainSize)
			}
			return nil
		})
		for range table.Entries() {
			if _, err := source.Next(); err != nil {
				t.Fatal(err)
			}
		}
		end := int64(0)
		for i := range table.Spans() {
			s := table.Span(i)
			if s.Plain.Start != end || s.Plain.Len() < 0 || s.Compressed.Len() <= 0 || s.Compressed.Start < 0 {
				t.Errorf("span %d: %+v, want it at %d", i, s, end)
			}
			end = s.Plain.End
			checkOpen(t, s)
		}
		if end < table.PlainSize {
			t.Errorf("the spans end at %d of %d", end, table.PlainSize)
		}
	})
}

// checkOpen opens a span with some bytes that have the right digest.
func checkOpen(t *testing.T, s Span) {
	t.Helper()
	if s.Compressed.Len() > 10_000 {
		return
	}
	compressed := bytes.Repeat([]byte{0x4a, 0x91, 0x63}, 4000)[:s.Compressed.Len()]
	s.Digest = sha256.Sum256(compressed)
	r, err := s.Open(compressed)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := io.Copy(io.Discard, r); n > s.Plain.Len() {
		t.Errorf("got %d bytes of a span of %d", n, s.Plain.Len())
	}
}

// FuzzMake compares with tree.Scan.
func FuzzMake(f *testing.F) {
	small := tarball.Of(tarball.Dir("a"), tarball.File("a/b", "hello", tarball.Xattr("user.x", "y")),
		tarball.Link("c", "a/b", tarball.Claim(5)), tarball.Symlink("d", "c"))
	f.Add(small, true)
	f.Add(small, false)
	f.Fuzz(func(t *testing.T, plain []byte, compressed bool) {
		o, blob := Options{Uncompressed, 1000, goldenTool, tree.Limits{}, nil}, plain
		if compressed {
			o.Compression, blob = Gzip, member(t, plain)
		}
		ztoc, err := Make(bytes.NewReader(blob), o)
		if err != nil {
			return
		}
		table, err := Decode(ztoc, tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		type part struct {
			name    string
			content []byte
		}
		var want, got []part
		err = tree.Scan(bytes.NewReader(plain), tree.Limits{}, func(e *tree.Entry, r io.Reader) error {
			content, err := io.ReadAll(r)
			want = append(want, part{e.Name, content})
			e.Content = someContent(e)
			return err
		}, func(*tree.Entry) error { return nil })
		if err != nil {
			return // a file of a size that the tree refuses
		}
		source := table.Layer(func(e *tree.Entry, offset int64) error {
			got = append(got, part{e.Name, plain[offset : offset+e.Size]})
			return nil
		})
		for err == nil {
			_, err = source.Next()
		}
		if err != io.EOF || len(got) != len(want) {
			t.Fatalf("got %d files (%v), want %d", len(got), err, len(want))
		}
		for i := range got {
			if got[i].name != want[i].name || !bytes.Equal(got[i].content, want[i].content) {
				t.Errorf("file %d: got %q, want %q, or their contents differ", i, got[i].name, want[i].name)
			}
		}
	})
}
