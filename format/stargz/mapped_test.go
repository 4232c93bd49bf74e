package stargz

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/layer"
	"lighter/test/testkit/tarball"
)

// A node reads all files of a layer by its table: small ones of which several share a unit, and
// those whose chunks are divided.
func TestMapped(t *testing.T) {
	large := make([]byte, 9_000_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large) // it never fails
	contents := map[string]string{"large": string(large), "zeros": strings.Repeat("\x00", 3<<20), "empty": "",
		"again": string(large[:1000])}
	var items []tarball.Item
	for i := range 300 {
		contents[fmt.Sprint("small/", i)] = string(large[i*100:][:i+1])
	}
	for name, text := range contents {
		items = append(items, tarball.File(name, text))
	}
	archive := tarball.Of(items...)
	for _, format := range []Format{EStargz, StargzZstd} {
		blob, w, l, err := written(t, archive, Serial(encodeFor(format)), Options{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		m, err := l.Map(w.Digest, w.Size)
		if err != nil {
			t.Fatal(err)
		}
		got, units := readMapped(t, m, blob)
		if len(m.First) != 0 {
			t.Errorf("%s: %d units come first, want none without prioritized files", format, len(m.First))
		}
		if units > 12 {
			t.Errorf("%s: %d units, want those of the large files, and few for the small ones", format, units)
		}
		for name, want := range contents {
			if got[name] != want {
				t.Errorf("%s: file %s has %d bytes, want the %d bytes of the tar", format, name, len(got[name]),
					len(want))
			}
		}
	}
}

// The units before the landmark have the prioritized files, and nothing else.
func TestFirstUnits(t *testing.T) {
	for _, format := range []Format{EStargz, StargzZstd} {
		_, w, l, err := written(t, sourceTar(), Serial(encodeFor(format)), Options{Format: format,
			Prioritized: []string{"usr/bin/medium", "etc/beyond"}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := l.Map(w.Digest, w.Size)
		if err != nil {
			t.Fatal(err)
		}
		first := map[chunk.ID]bool{}
		for n, u := range units(t, m) {
			for _, c := range u.Chunks {
				first[c.ID] = slices.Contains(m.First, uint32(n))
			}
		}
		want := map[chunk.ID]bool{chunk.Sum([]byte(text(2, 60_000))): true, chunk.Sum([]byte(text(6, 513))): true}
		for id := range first {
			if first[id] != want[id] {
				t.Errorf("%s: chunk %s comes first: %t, want %t", format, id.Short(), first[id], want[id])
			}
		}
		if len(m.First) == 0 {
			t.Errorf("%s: no unit comes first", format)
		}
	}
}

// readMapped returns the contents of a layer's files, and the number of units.
func readMapped(t *testing.T, m *layer.Layer, blob []byte) (files map[string]string, n int) {
	t.Helper()
	all := units(t, m)
	batches := make([]*layer.Batch, len(all))
	for i, u := range all {
		var err error
		if batches[i], err = u.Decode(blob[u.Offset:][:u.Stored]); err != nil {
			t.Fatal(err)
		}
	}
	files = map[string]string{}
	for source := m.Source(); ; {
		e, err := source.Next()
		if err == io.EOF {
			return files, len(all)
		}
		if err != nil {
			t.Fatal(err)
		}
		var content strings.Builder
		for _, x := range e.Content.Extents {
			n, found := m.Units[x.ID]
			switch {
			case x.IsHole():
				content.Write(make([]byte, x.Length))
			case !found || x.Length > chunk.MaxLength:
				t.Fatalf("chunk %s of %d bytes has no unit, or is too long", x.ID.Short(), x.Length)
			default:
				plain, err := batches[n].Lookup(x.ID)
				if err != nil {
					t.Fatal(err)
				}
				content.Write(plain)
			}
		}
		files[e.Name] = content.String()
	}
}
