package stargz

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/tree"
)

// endless is an endless text, which begins with first and goes on with rest, again and again.
type endless struct {
	first, rest string
	read        int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.first == "" {
		e.first = e.rest
	}
	n := copy(p, e.first)
	e.first = e.first[n:]
	e.read += int64(n)
	return n, nil
}

// A row, a name and whatever else stands in a table takes a bounded number of bytes.
func TestRowsAreBounded(t *testing.T) {
	for name, first := range map[string]string{
		"a name":          `{"version": 1, "entries": [{"type": "dir", "name": "`,
		"an unknown name": `{"version": 1, "entries": [{"type": "dir", "name": "d", "`,
		"another list":    `{"version": 1, "other": "`,
		"a key":           `{"`,
	} {
		in := &endless{first: first, rest: strings.Repeat("a", 4096)}
		_, err := decodeText(t.Context(), Table{Format: ContainersZstd}, in)
		if err == nil || !strings.Contains(err.Error(), "a row of more than 4194304 bytes") || in.read > 2*maxRow {
			t.Errorf("%s: read %d bytes, then got %v", name, in.read, err)
		}
	}
	for name, text := range map[string]string{"blanks": " ", "begins": "[", "objects": `{"a":`} {
		in := &endless{first: `{"version": 1, "other": `, rest: strings.Repeat(text, 1000)}
		if _, err := decodeText(t.Context(), Table{Format: ContainersZstd}, in); err == nil || in.read > 2*maxRow {
			t.Errorf("%s: read %d bytes, then got %v", name, in.read, err)
		}
	}
}

// The number of entries and chunks is bounded by the memory that they take: 10 million of them are
// refused before they fill it.
func TestMemoryIsBounded(t *testing.T) {
	for name, rows := range map[string][]*row{
		"directories": {{Type: "dir", Name: "d"}},
		"names":       {{Type: "dir", Name: strings.Repeat("d", 4000)}},
		"attributes":  {{Type: "dir", Name: "d", Xattrs: map[string][]byte{"user.x": make([]byte, 4000)}}},
		"landmarks":   {{Type: "reg", Name: landmark, Size: 1, Digest: digestOf("1")}},
		"chunks": {{Type: "reg", Name: "f", Size: math.MaxInt32, ChunkSize: 1, ChunkDigest: digestOf("1")},
			{Type: "chunk", ChunkSize: 1, ChunkDigest: digestOf("1")}},
		"holes": {{Type: "reg", Name: "f", Size: math.MaxInt32, ChunkSize: 1, ChunkType: zeros},
			{Type: "chunk", ChunkSize: 1, ChunkType: zeros}},
	} {
		const part = 32 // of the memory is free at the begin, to save time
		const most = 10_000_000 / part
		b := newBuilder(Table{Format: EStargz, DataEnd: 1})
		b.memory = maxMemory - maxMemory/part
		var err error
		n := 0
		for ; n < most && err == nil; n++ {
			r := *rows[min(n, len(rows)-1)]
			r.ChunkOffset = b.file.at
			if r.Type != typeChunk {
				r.ChunkOffset = 0
			}
			err = b.add(&r)
			b.entries, b.parts = nil, nil // only the estimate is tested, so the test needs no memory
			if b.file.entry != nil {
				b.file.entry.Content.Extents = nil
			}
		}
		var beyond *tree.LimitError
		if !errors.As(err, &beyond) || beyond.Limit != maxMemory {
			t.Errorf("%s: got %v after %d rows, want a LimitError", name, err, n)
		}
		t.Logf("%d rows: %s", n*part, name)
	}
}

// A table that decompresses to more than it may is refused, and so is one that is too long.
func TestTableBytesAreBounded(t *testing.T) {
	_, err := io.Copy(io.Discard, newDigested(&endless{rest: strings.Repeat(" ", 1<<20)}, 10<<20, "plain", chunk.ID{}))
	if err == nil || err.Error() != "more than the limit of 10485760 plain bytes" {
		t.Errorf("got %v, want an error about the limit", err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	text := `{"version": 1, "entries": []}`
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "other", Size: int64(len(text))}), z.Flush()); err != nil {
		t.Fatal(err)
	}
	_, err = Decode(t.Context(), Table{Format: EStargz}, &b)
	if err == nil || !strings.Contains(err.Error(), `file "other", want "stargz.index.json"`) {
		t.Errorf("got %v, want an error about the name", err)
	}
}

// Chunks of one member become several units if they are large: a unit is decoded in memory.
func TestLargeMembersAreSplit(t *testing.T) {
	row := func(name, digest string, inner, size int64) string {
		return fmt.Sprintf(`{"type": "reg", "name": %q, "digest": %q, "offset": 7, "innerOffset": %d, "size": %d}`,
			name, digestOf(digest), inner, size)
	}
	l, err := decodeJSON(t, EStargz+1, tableOf(row("a", "a", 512, 5<<20), row("b", "b", 6<<20, 2<<20),
		row("c", "c", 8<<20, 8<<20), row("d", "d", 16<<20, 1), row("a again", "a", 20<<20, 5<<20)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range l.units {
		got = append(got, fmt.Sprintf("%d+%d: %d chunks in %d", u.offset, u.length, len(u.chunks), plainOf(u)))
	}
	want := "7+9993: 2 chunks in 8388096, 7+9993: 1 chunks in 8388608, 7+9993: 1 chunks in 1"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
	for name, n := range map[string]int{"a": 0, "b": 0, "c": 1, "d": 2} {
		id := chunk.Sum([]byte(name))
		has := func(u unit) bool { return slices.ContainsFunc(u.chunks, func(p place) bool { return p.id == id }) }
		if at := slices.IndexFunc(l.units, has); at != n {
			t.Errorf("chunk of %s: got unit %d, want %d", name, at, n)
		}
	}
	parts := make([]part, maxChunks+2)
	for i := range parts {
		parts[i] = part{id: chunk.Sum(fmt.Append(nil, i)), offset: 7, inner: int64(i), length: 1}
	}
	units, err := makeUnits(Table{Format: EStargz, DataEnd: 1 << 20}, parts)
	if err != nil || len(units) != 2 || len(units[0].chunks) != maxChunks || len(units[1].chunks) != 2 {
		t.Errorf("got %d units, %v, want 2", len(units), err)
	}
	if last := units[1].chunks[1].id; last != parts[maxChunks+1].id {
		t.Errorf("the last chunk is %s", last)
	}
	// The end of a chunk has to be reached with few stored bytes.
	text := tableOf(row("a", "a", 100<<20, 1))
	table := Table{Format: ContainersZstd, DataEnd: 1 << 40}
	if _, err := decodeText(t.Context(), table, strings.NewReader(text)); err == nil || !strings.Contains(err.Error(),
		"a chunk ends 104857601 plain bytes inside, in 118030337 stored bytes; the limit is 9502720") {
		t.Errorf("got %v, want an error about the limit", err)
	}
}

// A large file of zeros is a hole. No more zeros are hashed than is bounded.
func TestLargeZeros(t *testing.T) {
	const size = MaxChunk + 1
	zero := digestOf(strings.Repeat("\x00", size))
	r := fmt.Sprintf(`{"type": "reg", "name": "f", "digest": %q, "offset": 7, "size": %d}`, zero, size)
	l, err := decodeJSON(t, ContainersZstd, tableOf(r))
	if err != nil {
		t.Fatal(err)
	}
	if x := l.entries[0].Content.Extents; len(x) != 1 || !x[0].IsHole() || x[0].Length != size || len(l.units) != 0 {
		t.Errorf("got %+v in %d units, want a hole", x, len(l.units))
	}
	other := strings.Replace(r, zero, digestOf("1"), 1)
	expectError(t, tableOf(other), "a chunk of 8388609 bytes, the limit is 8388608")
	b := newBuilder(Table{Format: ContainersZstd, DataEnd: 100})
	b.zeros = maxZeros - size + 1
	err = b.add(&row{Type: "reg", Name: "f", Size: size, Offset: 7, Digest: zero})
	if err == nil || !strings.Contains(err.Error(), "the limit is") {
		t.Errorf("got %v, want an error about the limit", err)
	}
}

// FuzzDecode decodes tables. A table that is accepted can be applied, or refused by an entry, and
// each of its chunks is in one unit within the layer.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"estargz-prioritized", "stargz-zstd-shared", "containers"} {
		table, _ := find(f, name, false)
		blob := stored(f, name+".blob")
		plain, err := openTable(table.Format, bytes.NewReader(blob[table.Offset:][:table.Length]))
		if err != nil {
			f.Fatal(err)
		}
		text, err := io.ReadAll(io.LimitReader(plain, 1500))
		if err != nil {
			f.Fatal(err)
		}
		// The first rows suffice: a fuzzer takes a minute to minimize a long input.
		text = append(text[:bytes.LastIndexByte(text, '}')+1], "]}"...)
		f.Add(byte(table.Format), string(text))
	}
	f.Add(byte(EStargz), tableOf(`{"type": "hardlink", "name": "a", "linkName": "a"}`))
	f.Fuzz(func(t *testing.T, format byte, text string) {
		table := Table{Format: Format(format), DataEnd: 1 << 20}
		l, err := decodeText(t.Context(), table, strings.NewReader(text))
		if err != nil {
			return
		}
		checkLayer(t, l, table)
		_, err = tree.Apply(context.Background(), []tree.LayerSource{l.Source()}, tree.Limits{Entries: 10_000})
		var refused *tree.EntryError
		var beyond *tree.LimitError
		if err != nil && !errors.As(err, &refused) && !errors.As(err, &beyond) {
			t.Errorf("Apply returned %v", err)
		}
	})
}

// plainOf returns the plain bytes from a unit's first chunk to its last one.
func plainOf(u unit) int64 { return u.chunks[len(u.chunks)-1].end() - u.chunks[0].at }

// checkLayer checks what a Layer promises.
func checkLayer(t *testing.T, l *Layer, table Table) {
	t.Helper()
	seen := map[chunk.ID]uint32{}
	last := int64(0)
	for n, u := range l.units {
		if len(u.chunks) == 0 || u.offset < last || u.length <= 0 || u.offset+u.length > table.DataEnd ||
			plainOf(u) > MaxChunk || u.length > maxUnitStored {
			t.Errorf("unit %d: %d chunks at %d+%d", n, len(u.chunks), u.offset, u.length)
		}
		last = u.offset
		for _, c := range u.chunks {
			if seen[c.id] != 0 || c.length == 0 {
				t.Errorf("unit %d: chunk %s of %d bytes twice", n, c.id.Short(), c.length)
			}
			seen[c.id] = c.length
		}
	}
	src := l.Source()
	for n := 0; ; n++ {
		e, err := src.Next()
		if err == io.EOF {
			if n != len(l.entries) {
				t.Errorf("the source has %d entries, want %d", n, len(l.entries))
			}
			return
		}
		for _, x := range e.Content.Extents {
			if !x.IsHole() && int64(seen[x.ID]) != x.Length {
				t.Errorf("%q: a chunk of %d bytes has %d in the units", e.Name, x.Length, seen[x.ID])
			}
		}
	}
}

// FuzzLocate looks for tables. What is found lies in the layer.
func FuzzLocate(f *testing.F) {
	for _, name := range golden {
		a, blob := annotations(f, name), stored(f, name+".blob")
		f.Add(a[TableDigest], a[Position], a[ContainersPosition], a[Checksum], int64(len(blob)),
			blob[len(blob)-tail:])
	}
	f.Fuzz(func(t *testing.T, digest, position, containers, checksum string, size int64, end []byte) {
		a := map[string]string{TableDigest: digest, Checksum: checksum}
		if position != "" {
			a[Position] = position
		}
		if containers != "" {
			a[ContainersPosition] = containers
		}
		table, found, err := Locate(a, size)
		if err == nil && found {
			checkTable(t, table, size)
		}
		if table, err = LocateByFooter(a, size, end); err == nil {
			checkTable(t, table, size)
		}
	})
}

func checkTable(t *testing.T, table Table, size int64) {
	t.Helper()
	if table.DataEnd < 0 || table.DataEnd > size || !table.External && (table.Length <= 0 ||
		table.Length > MaxStored || table.Offset < table.DataEnd || table.Offset+table.Length > size) {
		t.Errorf("%+v in a layer of %d bytes", table, size)
	}
}
