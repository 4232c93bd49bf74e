package stargz

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"lighter/format/chunk"
)

// BenchmarkDecode decodes a table of 100,000 files as stargz-snapshotter writes it.
func BenchmarkDecode(b *testing.B) {
	type entry map[string]any
	var entries []entry
	for i := range 100_000 {
		d := digestOf(fmt.Sprint(i))
		name := fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module%d.py", i/50, i)
		entries = append(entries, entry{"name": name, "type": "reg",
			"size": 1000 + i, "modtime": "2024-01-01T00:00:00Z", "mode": 420,
			"offset": 100 + 500*i,
			"digest": d, "chunkDigest": d})
	}
	text, err := json.MarshalIndent(map[string]any{"version": 1, "entries": entries}, "", "\t")
	if err != nil {
		b.Fatal(err)
	}
	stored := zstdOf(b, string(text))
	table := Table{Format: StargzZstd, Length: int64(len(stored)), PlainLength: int64(len(text)),
		Plain: chunk.Sum(text), DataEnd: 1 << 30}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		l, err := Decode(b.Context(), table, bytes.NewReader(stored))
		if err != nil {
			b.Fatal(err)
		}
		if len(l.entries) != len(entries) {
			b.Fatalf("%d entries", len(l.entries))
		}
	}
	b.ReportMetric(float64(len(stored)), "stored-bytes")
}
