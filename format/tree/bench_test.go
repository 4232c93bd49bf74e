package tree

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"

	"lighter/format/chunk"
)

// manyEntries writes the record of a layer of n entries that are typical for images: directories of
// 20 files, names of 8 to 40 bytes, one chunk a file.
func manyEntries(b *testing.B, n int) []byte {
	b.Helper()
	var out bytes.Buffer
	w := NewRecordWriter(&out)
	add := func(e *Entry) {
		if err := w.Add(e); err != nil {
			b.Fatal(err)
		}
	}
	dir := ""
	for i := range n {
		if i%20 == 0 {
			dir = fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module%d/", i/2000, i/20)
			add(&Entry{Type: '5', Name: dir, Mode: 0o755, Mtime: Time{Sec: 1600000000}})
			continue
		}
		name := fmt.Sprintf("%sfile-%d-%.*s.py", dir, i, i%24, "of-some-longer-name-or-so")
		size := int64(1000 + i)
		add(&Entry{Type: '0', Name: name, Mode: 0o644, Mtime: Time{Sec: 1600000000}, Size: size,
			Content: Content{Extents: []Extent{{ID: chunk.Sum([]byte(name)), Length: size}}}})
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return out.Bytes()
}

// BenchmarkApply reports the time and the tree's memory for each entry of a chain of two layers.
func BenchmarkApply(b *testing.B) {
	const n = 1_000_000
	record := manyEntries(b, n)
	small := manyEntries(b, n/100)
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		layers := []LayerSource{NewRecordReader(bytes.NewReader(record)), NewRecordReader(bytes.NewReader(small))}
		tr, err := Apply(context.Background(), layers, Limits{})
		if err != nil {
			b.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "allocated-B/entry")
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "live-B/entry")
		runtime.KeepAlive(tr)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
	b.ReportMetric(float64(len(record))/n, "record-B/entry")
}

// BenchmarkOneDirectory has all names in one directory. The time for a name must not depend on
// their number.
func BenchmarkOneDirectory(b *testing.B) {
	const n = 1_000_000
	for b.Loop() {
		list := make([]*Entry, 0, 2*n)
		for i := range n {
			list = append(list, &Entry{Type: '0', Name: fmt.Sprintf("d/%d", i*7919%n)})
		}
		for i := range n / 2 {
			list = append(list, &Entry{Type: '0', Name: fmt.Sprintf("d/.wh.%d", i)})
		}
		if _, err := Apply(context.Background(), []LayerSource{&entries{list: list}}, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
