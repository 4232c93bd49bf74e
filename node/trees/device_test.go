package trees

import (
	"os"
	"testing"

	"lighter/format/chunk"
	"lighter/node/prefetch"
)

// Device opens a verified tree, and fetches it again if it is damaged on the disk.
func TestDeviceOfATreeThatIsNotMounted(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	trees.prefetcher = prefetch.New(func() prefetch.Source { return everyChunk{} }, prefetch.Options{}, trees.log)
	if _, _, err := trees.Device(t.Context(), chunk.Sum([]byte("no tree"))); err == nil {
		t.Error("a missing tree was opened")
	}
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []bool{false, true} {
		if damaged {
			if err := os.Truncate(trees.Metadata(h.tree), 100); err != nil {
				t.Fatal(err)
			}
		}
		d, closeDevice, err := trees.Device(t.Context(), h.tree)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4096)
		if _, err := d.ReadAt(t.Context(), got, 7*4096); err != nil || got[0] != chunk.Sum([]byte{7})[0] {
			t.Errorf("read byte %d: %v", got[0], err)
		}
		closeDevice()
	}
	if n := h.asked.Load(); n != 2 { // a missing tree is not fetched
		t.Errorf("the hub was asked for %d indexes, want 2", n)
	}
}
