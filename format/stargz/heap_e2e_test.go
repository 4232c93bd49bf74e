//go:build e2e

package stargz

import (
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// A whole table is refused, too: 10 million rows do not fill the heap.
// It would take a minute with the race detector.
func TestHeapOfTable(t *testing.T) {
	before := heap()
	rows := &endlessRows{row: func(int) string { return `{"type":"dir","name":"d"}` }, every: 8 << 20}
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err == nil {
			_, err = io.Copy(z, io.MultiReader(strings.NewReader(`{"version": 1, "entries": `), rows))
		}
		_ = to.CloseWithError(err)
	}()
	_, err := Decode(t.Context(), Table{Format: ContainersZstd, DataEnd: 1}, from)
	_ = from.Close() // ends the goroutine
	<-done
	if checkHeap(t, "directories", err, rows, before, maxMemory); rows.n > 10_000_000 {
		t.Errorf("%d rows were read", rows.n)
	}
}
