package stargz

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"lighter/format/chunk"
)

// benchTable returns a table of 100,000 files as stargz-snapshotter writes it, and its stored
// bytes.
// As in layers of Debian, neighbouring files have the same time, and few files have several chunks.
func benchTable(b *testing.B) (Table, []byte) {
	b.Helper()
	var rows []row
	for i := range 100_000 {
		d := digestOf(fmt.Sprint(i))
		r := row{Name: fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module%d.py", i/50, i), Type: "reg",
			Size: int64(1000 + i), ModTime: fmt.Sprintf("2024-01-01T00:%02d:%02dZ", i/3000, i/50%60), Mode: 0o644,
			UID: 1000, GID: 1000, UserName: "user", GroupName: "group", Offset: int64(100 + 2000*i),
			Digest: d, ChunkDigest: d}
		if i%50 != 0 {
			rows = append(rows, r)
			continue
		}
		const size = 4 << 20
		r.Size = 2 * size
		for at := range int64(2) {
			r.Offset += 1000 * at
			r.ChunkOffset, r.ChunkSize, r.ChunkDigest = at*size, size, digestOf(fmt.Sprint("chunk ", at, " of ", i))
			rows = append(rows, r)
			r = row{Name: r.Name, Type: typeChunk, Offset: r.Offset}
		}
	}
	text, err := json.MarshalIndent(map[string]any{"version": 1, "entries": rows}, "", "\t")
	if err != nil {
		b.Fatal(err)
	}
	stored := zstdOf(b, string(text))
	return Table{Format: StargzZstd, Length: int64(len(stored)), PlainLength: int64(len(text)), Plain: chunk.Sum(text),
		DataEnd: 1 << 30}, stored
}

func BenchmarkDecode(b *testing.B) {
	table, stored := benchTable(b)
	b.SetBytes(table.PlainLength)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(b.Context(), table, bytes.NewReader(stored)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(stored)), "stored-bytes")
}

func BenchmarkMap(b *testing.B) {
	table, stored := benchTable(b)
	l, err := Decode(b.Context(), table, bytes.NewReader(stored))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Map(table.Plain, table.DataEnd); err != nil {
			b.Fatal(err)
		}
	}
}
