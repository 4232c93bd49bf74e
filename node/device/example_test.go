package device_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"lighter/format/chunk"
	"lighter/node/device"
	"lighter/test/testkit/filetree"
)

// cachedChunks is a device.Chunks whose chunks are all cached.
type cachedChunks map[chunk.ID][]byte

func (c cachedChunks) Cached(ref chunk.Ref, offset int, dst []byte) bool {
	return copy(dst, c[ref.ID][offset:]) == len(dst)
}

func (cachedChunks) Read(context.Context, chunk.Ref, int, []byte, func()) error {
	return chunk.ErrNotFound
}

// printer is a device.Observer that prints reads.
type printer struct{}

func (printer) Observe(r device.Read) {
	fmt.Printf("%d bytes at %d, extents %d to %d\n", r.Length, r.Offset, r.First, r.End-1)
}

// A device answers reads from chunks, and reports them to its observers.
func Example() {
	tree := filetree.New(&testing.T{}, 40, 60000)
	d := device.New(tree.Extents, nil, cachedChunks(tree.Chunks), slog.New(slog.DiscardHandler))
	stop := d.Observe(printer{})
	missed, err := d.ReadAt(context.Background(), make([]byte, 128<<10), 1<<20)
	stop()
	fmt.Println("missed:", missed, "error:", err)
	// Output:
	// 131072 bytes at 1048576, extents 30 to 34
	// missed: 0 error: <nil>
}
