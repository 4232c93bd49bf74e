package stargz

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"lighter/format/tree"
)

// endlessRows is a list of rows without an end. It measures the heap after each so many bytes.
type endlessRows struct {
	row         func(n int) string
	n           int
	text        string // that follows
	read, every int
	most        int64 // bytes of the heap that were in use
}

// Read implements io.Reader.
func (e *endlessRows) Read(p []byte) (int, error) {
	if e.text == "" {
		e.text, e.n = ","+e.row(e.n), e.n+1
		if e.n == 1 {
			e.text = "[" + e.text[1:]
		}
	}
	n := copy(p, e.text)
	if (e.read+n)/e.every > e.read/e.every {
		e.most = max(e.most, heap())
	}
	e.text, e.read = e.text[n:], e.read+n
	return n, nil
}

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// checkHeap checks that rows were refused when a limit was reached, and what was used until then.
func checkHeap(t *testing.T, name string, err error, rows *endlessRows, before, limit int64) {
	t.Helper()
	var beyond *tree.LimitError
	if !errors.As(err, &beyond) || beyond.Limit != maxMemory {
		t.Errorf("%s: got %v after %d rows, want a LimitError", name, err, rows.n)
	}
	if used := rows.most - before; used > limit*3/2 || used < limit/4 {
		t.Errorf("%s: %d rows take %d bytes of the heap, want at most about %d", name, rows.n, used, limit)
	}
}

// Endless rows of each kind are refused when their memory reaches what is left of the limit. Until
// then they take no more of the heap than is estimated.
func TestHeapIsBounded(t *testing.T) {
	digest := digestOf("1")
	chunks := func(rest string) func(int) string {
		return func(n int) string {
			if n == 0 {
				return fmt.Sprintf(`{"type":"reg","name":"f","size":%d,"chunkSize":1,%s}`, math.MaxInt32, rest)
			}
			return fmt.Sprintf(`{"type":"chunk","chunkOffset":%d,"chunkSize":1,%s}`, n, rest)
		}
	}
	value := strings.Repeat("AAAA", 1000)
	for name, row := range map[string]func(n int) string{
		"directories": func(int) string { return `{"type":"dir","name":"d"}` },
		"short names": func(n int) string { return fmt.Sprintf(`{"type":"dir","name":"%d"}`, n) },
		"long names":  func(n int) string { return fmt.Sprintf(`{"type":"dir","name":"%04000d"}`, n) },
		"attributes":  func(int) string { return `{"type":"dir","name":"d","xattrs":{"user.x":"` + value + `"}}` },
		"short attributes": func(n int) string {
			return fmt.Sprintf(`{"type":"dir","name":"d","xattrs":{"user.%d":"","user.%d.a":"AA=="}}`, n, n)
		},
		"files":  func(int) string { return `{"type":"reg","name":"f","size":1,"digest":"` + digest + `"}` },
		"chunks": chunks(`"chunkDigest":"` + digest + `"`),
		"holes":  chunks(`"chunkType":"zeros"`),
	} {
		const left = maxMemory / 32 // to save time
		rows := &endlessRows{row: row, every: 512 << 10}
		in := &rowReader{ctx: t.Context(), r: rows}
		dec := jsontext.NewDecoder(in, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
		in.offset = dec.InputOffset
		before := heap()
		b := newBuilder(Table{Format: ContainersZstd, DataEnd: 1})
		b.memory = maxMemory - left
		checkHeap(t, name, decodeRows(dec, in, b), rows, before, left)
		runtime.KeepAlive(b)
	}
}
