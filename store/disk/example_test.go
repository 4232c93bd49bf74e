package disk_test

import (
	"fmt"
	"log/slog"
	"os"

	"lighter/format/chunk"
	"lighter/store/disk"
)

// A cache keeps pinned chunks when everything else is evicted.
func Example() {
	dir, err := os.MkdirTemp("", "cache")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	cache, err := disk.Open(dir, disk.Limits{Size: disk.MinLimit}, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	defer cache.Close()

	plain := []byte("a chunk of a file")
	ref := chunk.Ref{ID: chunk.Sum(plain), Length: uint32(len(plain))}
	cache.Put(ref, plain)

	var image disk.Set
	image.Add(ref)
	if err := cache.Pin(chunk.Sum([]byte("image")), "an image", &image); err != nil {
		panic(err)
	}
	cache.Prune()

	dst := make([]byte, 5)
	fmt.Println(cache.Read(ref, 2, dst), string(dst))
	// Output: true chunk
}
