package trees

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/node/prefetch"
)

// everyChunk is a source that has every chunk. All bytes of a chunk are the first byte of its ID.
type everyChunk struct{ prefetch.Source }

func (everyChunk) Has(chunk.ID) bool { return true }
func (everyChunk) Cached(ref chunk.Ref, _ int, dst []byte) bool {
	for i := range dst {
		dst[i] = ref.ID[0]
	}
	return true
}

// If an extent map is damaged on the disk while its device is used, reads return correct bytes or
// an error. If the hub has the index, the map is repaired.
func TestMapIsDamagedUnderItsDevice(t *testing.T) {
	damages := map[string]func(path string, b []byte) error{
		"flipped": func(path string, b []byte) error { b[len(b)-100] ^= 1; return write(path, b) },
		"cut":     func(path string, b []byte) error { return os.Truncate(path, int64(len(b)-2000)) },
		"emptied": func(path string, b []byte) error { return os.Truncate(path, 0) },
		"zeroed":  func(path string, b []byte) error { return write(path, make([]byte, len(b))) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			trees := openTrees(t, h)
			trees.prefetcher = prefetch.New(func() prefetch.Source { return everyChunk{} }, prefetch.Options{},
				trees.log)
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
				t.Fatal(err)
			}
			m, err := trees.open(h.tree)
			if err != nil {
				t.Fatal(err)
			}
			defer m.close()
			path := filepath.Join(trees.dir(h.tree), "map")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(path, 0o600), damage(path, b)); err != nil {
				t.Fatal(err)
			}
			good := h.index
			h.index = bytes.Repeat([]byte{7}, len(good))
			if _, err := m.Device.ReadAt(t.Context(), make([]byte, 4096), 90*4096); err == nil {
				t.Error("a read succeeded with a damaged map and a hub that sends wrong bytes")
			}
			h.index = good
			asked := h.asked.Load()
			if _, err := m.Device.ReadAt(t.Context(), make([]byte, 4096), 90*4096); err == nil ||
				h.asked.Load() != asked {
				t.Error("the hub was asked again at once, or the read succeeded")
			}
			m.repair.next = m.repair.next.Add(-repairPause)
			var readers sync.WaitGroup
			for range 8 {
				readers.Go(func() {
					got := make([]byte, 4096)
					want := chunk.Sum([]byte{90})[0]
					if _, err := m.Device.ReadAt(context.Background(), got, 90*4096); err != nil || got[0] != want ||
						got[4095] != want {
						t.Errorf("read %d, want %d: %v", got[0], want, err)
					}
				})
			}
			readers.Wait()
			if n := h.asked.Load() - asked; n != 1 {
				t.Errorf("the hub was asked %d times, want 1", n)
			}
			if after, err := os.ReadFile(path); err != nil || len(after) != len(b) {
				t.Errorf("the map on the disk was not repaired: %v", err)
			}
		})
	}
}

// write overwrites the beginning of a file in place: the file is open elsewhere.
func write(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
