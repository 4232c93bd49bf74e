package layer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/test/testkit/filetree"
	"lighter/test/testkit/golden"
)

// extentsOf returns an index with a file for each text.
func extentsOf(t testing.TB, texts ...string) *index.Map {
	t.Helper()
	var children []tree.Dirent
	for i, text := range texts {
		n := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: int64(len(text))}
		n.Content.Extents = []tree.Extent{{ID: chunk.Sum([]byte(text)), Length: n.Size}}
		children = append(children, tree.Dirent{Name: string(rune('a' + i)), Node: n})
	}
	return filetree.ExtentsOf(t, tree.NewDir(tree.Node{Mode: 0o755}, children))
}

// surveyed has units as package survey makes them: some of their chunks are in the index of sample
// files, in another order.
func surveyed() []Unit {
	window := make([]byte, WindowSize)
	copy(window[100:], "a part")
	copy(window[WindowSize-4:], "last")
	return []Unit{
		{Offset: 10, Stored: 300, Codec: Deflate, Bits: 3, Window: window,
			Chunks: []Chunk{chunkAt("third", 0, 512), chunkAt("removed", 0, 1024), chunkAt("first", 0, 2048)}},
		{Offset: 310, Stored: 20, Codec: Zstd, Chunks: []Chunk{chunkAt("replaced", 0, 0)}},
		{Offset: 330, Stored: 100, Codec: Stored,
			Chunks: []Chunk{chunkAt("second", 0, 1), chunkAt("first", 0, 2), chunkAt("second", 0, 90)}},
		{Offset: 330, Stored: 100, Codec: Deflate, Window: []byte("all of it"),
			Chunks: []Chunk{chunkAt("first", 0, 7)}},
	}
}

func tableOf(t testing.TB, size int64, units ...Unit) *Table {
	t.Helper()
	b := NewBuilder(chunk.Sum([]byte("blob")), size)
	for _, u := range units {
		if _, err := b.Add(u); err != nil {
			t.Fatal(err)
		}
	}
	table, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func sampleExtents(t testing.TB) *index.Map {
	return extentsOf(t, "first", "second", "third", "fourth")
}

func compacted(t testing.TB, table *Table, extents *index.Map) []byte {
	t.Helper()
	numbers, err := extents.Numbers()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := table.WriteCompact(&out, numbers); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The compact form of a table has all of its units and chunks, also those that are not of the tree.
func TestCompact(t *testing.T) {
	extents, want := sampleExtents(t), surveyed()
	b := compacted(t, tableOf(t, 430, want...), extents)
	made, err := ReadCompact(bytes.NewReader(b), extents)
	if err != nil {
		t.Fatal(err)
	}
	got, err := made.Open()
	if err != nil {
		t.Fatal(err)
	}
	if blob, size := got.Blob(); blob != chunk.Sum([]byte("blob")) || size != 430 || got.Units() != len(want) {
		t.Fatalf("blob %s of %d bytes in %d units, want %d", blob.Short(), size, got.Units(), len(want))
	}
	for n, u := range want {
		if v, err := got.Unit(uint32(n)); err != nil || !reflect.DeepEqual(*v, u) {
			t.Errorf("unit %d is %+v, %v; want %+v", n, v, err, u)
		}
	}
	b = compacted(t, tableOf(t, 430), extents)
	if made, err = ReadCompact(bytes.NewReader(b), extents); err != nil || made.Size() != headerSize {
		t.Errorf("a table without units: %v", err)
	}
}

// Units that package survey does not make have no compact form.
func TestCompactRefusesUnits(t *testing.T) {
	sealed := Unit{Stored: 5, Codec: Stored, Seal: SealedStored, Digest: chunk.Sum([]byte("first")),
		Chunks: []Chunk{chunkAt("first", 0, 0)}}
	parts := Unit{Stored: 50, Codec: Gzip, Chunks: []Chunk{chunkAt("first", 0, 0), chunkAt("second", 20, 0)}}
	for _, u := range []Unit{sealed, parts} {
		if err := tableOf(t, 50, u).WriteCompact(io.Discard, nil); err == nil {
			t.Errorf("unit %+v was written", u)
		}
	}
}

// form makes a compact form of numbers and strings.
func form(parts ...any) []byte {
	sum := chunk.Sum([]byte("blob"))
	b := append([]byte(compactMagic), sum[:]...)
	for _, part := range parts {
		switch part := part.(type) {
		case uint64:
			b = binary.AppendUvarint(b, part)
		case int:
			b = binary.AppendVarint(b, int64(part))
		case string:
			b = append(b, part...)
		}
	}
	return b
}

// A compact form that contradicts itself or exceeds the bounds is refused, and so is one that
// refers to extents that the index does not have.
func TestCompactRefuses(t *testing.T) {
	extents, stored := sampleExtents(t), "\x01\x00"
	size, one, none := uint64(430), uint64(1), uint64(0)
	// begin begins a form of one unit with a chunk.
	begin := func(parts ...any) []byte {
		return form(append([]any{size, one, uint64(10), uint64(100), stored, none}, parts...)...)
	}
	if _, err := ReadCompact(bytes.NewReader(begin(3, 0, none)), extents); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		b    []byte
	}{
		{"wrong magic", append([]byte("LGTRLYR\x01"), begin(3, 0, none)[8:]...)},
		{"extent 4 of 4", begin(4, 0, none)},
		{"extent -2 of 4", begin(-2, 0, none)},
		{"unexpected EOF", begin(-1, 0, "half of an ID")},
		{"extent 9223372036854775807 of 4", begin(1<<63-1, 0, none)},
		{"chunk at -1", begin(3, -1, none)},
		{"chunk at 4294967296", begin(3, 1<<32, none)},
		{"plain bytes", begin(3, 100, none)},
		{"bytes after its end", begin(3, 0, none, none)},
		{"overflows", begin(3, 0, strings.Repeat("\xff", 11))},
		{"at most 65536", form(size, uint64(65537))},
		{"unknown codec", form(size, one, uint64(10), uint64(100), "\x09\x00", none, 3, 0, none)},
		{"of a blob of 430", form(size, one, uint64(400), uint64(100), stored, none, 3, 0, none)},
		{"at most 4718592", form(size, one, uint64(10), uint64(MaxStored+1))},
		{"number is", form(uint64(1 << 63))},
		{"at most 9223372036854775797", form(size, one, uint64(10), uint64(100), stored, none, 3, 0, one,
			uint64(1<<63-1))},
		{"at most 32768", form(size, one, uint64(10), uint64(100), "\x04\x00", uint64(32769))},
		{"at most 5", form(size, one, uint64(10), uint64(100), "\x04\x00", uint64(5), uint64(6))},
		{"at most 2", form(size, one, uint64(10), uint64(100), "\x04\x00", uint64(5), uint64(3), uint64(3))},
		{"window is empty", form(size, one, uint64(10), uint64(100), "\x04\x00", uint64(5), none, none)},
	} {
		if _, err := ReadCompact(bytes.NewReader(c.b), extents); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	b := compacted(t, tableOf(t, 430, surveyed()...), extents)
	for n := range b {
		if _, err := ReadCompact(bytes.NewReader(b[:n]), extents); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("a form of %d bytes of %d: %v, want that it ends too early", n, len(b), err)
		}
	}
}

// Every later version must read the golden file.
func TestCompactIsGolden(t *testing.T) {
	golden.Compare(t, "compact.golden", string(compacted(t, tableOf(t, 430, surveyed()...), sampleExtents(t))))
}

// A form that was cut, changed or made up gives an error, or a table whose units can be read.
func FuzzReadCompact(f *testing.F) {
	extents := sampleExtents(f)
	f.Add(compacted(f, tableOf(f, 430, surveyed()...), extents))
	f.Fuzz(func(t *testing.T, b []byte) {
		made, err := ReadCompact(bytes.NewReader(b), extents)
		if err != nil {
			return
		}
		table, err := made.Open()
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint32(table.Units()) {
			if _, err := table.Unit(n); err != nil {
				t.Fatal(err)
			}
		}
	})
}
