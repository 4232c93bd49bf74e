package trees

import (
	"context"
	"os"
	"testing"

	"lighter/format/chunk"
	"lighter/node/fuse"
	"lighter/node/prefetch"
)

// noServer is a server without a kernel.
type noServer struct{}

func (noServer) Add(chunk.ID, int64, fuse.Reader) (string, error) { return "", nil }
func (noServer) Remove(chunk.ID) error                            { return nil }

// serveAny serves a tree. If the tree is damaged, serveAny repairs it first. The caller calls end
// after its last read.
func (s *Store) serveAny(ctx context.Context, tree chunk.ID) (o *OpenTree, end func(), err error) {
	err = s.WithRepair(ctx, tree, func() error {
		unlock, err := s.LockContext(ctx, tree)
		if err != nil {
			return err
		}
		defer unlock()
		o, _, err = s.Serve(ctx, tree)
		return err
	})
	return o, func() { _ = s.Unserve(tree) }, err
}

// Serve opens a verified tree, and fetches it again if it is damaged on the disk.
func TestServe(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	trees.prefetcher = prefetch.New(func() prefetch.Source { return everyChunk{} }, prefetch.Options{}, trees.log)
	if _, _, err := trees.serveAny(t.Context(), chunk.Sum([]byte("no tree"))); err == nil {
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
		d, closeDevice, err := trees.serveAny(t.Context(), h.tree)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4096)
		if _, err := d.Device.ReadAt(t.Context(), got, 7*4096); err != nil || got[0] != chunk.Sum([]byte{7})[0] {
			t.Errorf("read byte %d, want %d: %v", got[0], chunk.Sum([]byte{7})[0], err)
		}
		closeDevice()
	}
	if n := h.asked.Load(); n != 2 { // Ensure, and the repair; Serve does not fetch a missing tree
		t.Errorf("the hub was asked for %d indexes, want 2", n)
	}
}
