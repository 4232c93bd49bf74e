package audit_test

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"testing"

	"github.com/klauspost/compress/gzip"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/format/layer/audit"
	"lighter/format/soci"
	"lighter/format/tree"
	"lighter/test/testkit/tarball"
)

// FuzzRead changes some bytes of a zTOC, at places that change gives: 4 bytes each, the last one
// for the value. If the result is found right, a node reads by it the contents that the tar has.
func FuzzRead(f *testing.F) {
	archive := tarball.Of(tarball.File("a", lines(3000)), tarball.File("b", "first"), tarball.File("c", "other"))
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.HuffmanOnly)
	_, _ = z.Write(archive)
	_ = z.Close()
	blob := b.Bytes()
	ztoc, err := soci.Make(bytes.NewReader(blob), soci.Options{Compression: soci.Gzip, SpanSize: 1000})
	if err != nil {
		f.Fatal(err)
	}
	want := contents(f, archive)
	f.Add([]byte{})
	f.Add([]byte{0, 1, 2, 1, 0, 2, 1, 0x20})
	f.Fuzz(func(t *testing.T, change []byte) {
		text := bytes.Clone(ztoc)
		for ; len(change) >= 4; change = change[4:] {
			at := int(change[0])<<16 | int(change[1])<<8 | int(change[2])
			text[at%len(text)] ^= change[3]
		}
		table, err := soci.Decode(text, tree.Limits{Entries: 1000, Bytes: 1 << 20})
		if err != nil {
			return
		}
		l, err := table.Map(chunk.Sum(blob), int64(len(blob)), nil)
		if err != nil {
			return
		}
		m := &mapped{l, blob, nil}
		units := open(t, m)
		if err := audit.Read(bytes.NewReader(blob), audit.Claims{DiffID: chunk.Sum(archive), Source: l.Source(),
			Table: units}, tree.Limits{}); err != nil {
			return
		}
		if got := m.contents(t, units); !maps.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// contents returns the contents of the files of a tar.
func contents(t testing.TB, archive []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(b)
	}
}

// contents returns the contents of the files, as a node reads them.
func (m *mapped) contents(t *testing.T, units *layer.Table) map[string]string {
	t.Helper()
	all := map[string]string{}
	for source := m.Source(); ; {
		e, err := source.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, x := range e.Content.Extents {
			u, err := units.Unit(m.Units[x.ID])
			if err != nil {
				t.Fatal(err)
			}
			batch, err := u.Decode(m.blob[u.Offset:][:u.Stored])
			if err != nil {
				t.Fatal(err)
			}
			plain, err := batch.Lookup(x.ID)
			if err != nil {
				t.Fatal(err)
			}
			text += string(plain)
		}
		all[e.Name] = text
	}
}
