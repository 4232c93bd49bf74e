//go:build e2e

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/tree"
)

// TestMillionEntriesFit makes an index of a million files. It measures the heap when the first byte
// of the metadata image is written. The heap is largest then: it has the tree, the extent map and
// the plan of the metadata image.
func TestMillionEntriesFit(t *testing.T) {
	const most = 1 << 30 // bytes of heap
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	made, err := tree.Apply(context.Background(), []tree.LayerSource{&manyFiles{total: 1_000_000}}, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	w := &heapProbe{}
	m, err := index.Make(made, w)
	if err != nil {
		t.Fatal(err)
	}
	live := int64(w.live) - int64(before.HeapAlloc)
	t.Logf("%d files, %d files for each MiB of heap", m.Files, m.Files<<20/live)
	if m.Files != 1_000_000 || w.live == 0 {
		t.Fatalf("the index has %d files, want a million; heap at the first write: %d bytes", m.Files, w.live)
	}
	if live > most {
		t.Errorf("the index took %d bytes of heap, want %d at most", live, int64(most))
	}
}

// heapProbe measures the heap at its first Write.
type heapProbe struct{ live uint64 } // in bytes; 0 before the first Write

func (w *heapProbe) Write(b []byte) (int, error) {
	if w.live == 0 {
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		w.live = now.HeapAlloc
	}
	return len(b), nil
}

// manyFiles is a layer of total files. Each file has one chunk, and each directory 20 files.
type manyFiles struct{ total, done int }

func (m *manyFiles) Next() (*tree.Entry, error) {
	if m.done == m.total {
		return nil, io.EOF
	}
	i := m.done
	m.done++
	e := &tree.Entry{Type: '0', Mode: 0o644, Size: int64(1000 + i),
		Name: fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module%d/file-%d-%.*s.py", i/2000, i/20, i, i%24,
			"of-some-longer-name-or-so")}
	e.Content.Extents = []tree.Extent{{ID: chunk.Sum(binary.LittleEndian.AppendUint64(nil, uint64(i))), Length: e.Size}}
	return e, nil
}
