package trees

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// gatedHub is a hub that sends no index before open is closed.
type gatedHub struct {
	*fakeHub
	open chan struct{}
}

func gated(h *fakeHub) gatedHub { return gatedHub{h, make(chan struct{})} }

func (h gatedHub) Index(ctx context.Context, tree chunk.ID, take func(io.Reader) error) error {
	h.asked.Add(1)
	select {
	case <-h.open:
		return h.fakeHub.Index(ctx, tree, take)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A cancelled fetch leaves no file, and does not affect a later fetch.
func TestCancelledFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := gated(newHub(t))
		trees := openTrees(t, h.fakeHub)
		trees.source = h
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- trees.Ensure(ctx, h.tree, func() {}) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled caller got %v, want %v", err, context.Canceled)
		}
		if left := files(t, trees); len(left) > 0 {
			t.Errorf("files are left of a cancelled fetch: %q", left)
		}
		close(h.open)
		begun := 0
		if err := trees.Ensure(t.Context(), h.tree, func() { begun++ }); err != nil || begun != 1 ||
			!trees.Has(h.tree) {
			t.Errorf("the next caller got %v; begun was called %d times, want 1", err, begun)
		}
	})
}

// slowHub has two trees. The index of one is slow.
type slowHub struct {
	Source
	slow gatedHub
}

func (h slowHub) Index(ctx context.Context, tree chunk.ID, take func(io.Reader) error) error {
	if tree == h.slow.tree {
		return h.slow.Index(ctx, tree, take)
	}
	return h.Source.Index(ctx, tree, take)
}

// likeTree returns a hub with another tree. The IDs of both trees have the same low 6 bits in their
// first byte, so the trees would share a lock if each lock were for several trees.
func likeTree(t *testing.T, tree chunk.ID) *fakeHub {
	t.Helper()
	for n := 0; ; n++ {
		if h := newHubOf(t, fmt.Sprint("file ", n), someChunk); h.tree[0]%64 == tree[0]%64 && h.tree != tree {
			return h
		}
	}
}

// While the damaged index of a tree is fetched again, other trees can be used, and the tree itself
// can be removed.
func TestSlowTreeDelaysNoOther(t *testing.T) {
	for name, use := range map[string]func(ctx context.Context, trees *Store, tree chunk.ID) error{
		"mounted": func(ctx context.Context, trees *Store, tree chunk.ID) error {
			_, _, err := trees.serveAny(ctx, tree)
			return err
		},
		"read": func(ctx context.Context, trees *Store, tree chunk.ID) error { return trees.refetch(ctx, tree) },
	} {
		t.Run(name, func(t *testing.T) {
			slow := gated(newHub(t))
			other := likeTree(t, slow.tree)
			trees := openTrees(t, slow.fakeHub)
			for _, h := range []*fakeHub{slow.fakeHub, other} {
				trees.source = h
				if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
					t.Fatal(err)
				}
			}
			trees.source = slowHub{other, slow}
			path := filepath.Join(trees.dir(slow.tree), "map")
			if err := errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 5000)); err != nil {
				t.Fatal(err)
			}
			asked := slow.asked.Load()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			used := make(chan error, 1)
			go func() { used <- use(ctx, trees, slow.tree) }()
			for slow.asked.Load() == asked {
				time.Sleep(time.Millisecond)
			}
			free := make(chan error, 1)
			go func() {
				_, done, err := trees.serveAny(ctx, other.tree)
				if err == nil {
					done()
				}
				free <- errors.Join(err, remove(trees, other.tree), remove(trees, slow.tree))
			}()
			select {
			case err := <-free:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Error("other trees wait for the slow index")
			}
			cancel()
			if err := <-used; !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled caller got %v, want %v", err, context.Canceled)
			}
		})
	}
}

// If a tree is removed while its index is fetched again, the fetched index is discarded.
func TestRemovedTreeStaysRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := gated(newHub(t))
		trees := openTrees(t, h.fakeHub)
		if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
			t.Fatal(err)
		}
		trees.source = h
		renewed := make(chan error, 1)
		go func() { renewed <- trees.refetch(t.Context(), h.tree) }()
		synctest.Wait()
		if err := remove(trees, h.tree); err != nil {
			t.Fatal(err)
		}
		close(h.open)
		if err := <-renewed; err == nil || len(files(t, trees)) > 0 {
			t.Errorf("a removed tree was published: %v, %q", err, files(t, trees))
		}
	})
}

// If a tree is removed while its index is fetched again, Ensure can fetch the tree at the same
// time.
func TestRemovedTreeIsFetchedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := gated(newHub(t))
		trees := openTrees(t, h.fakeHub)
		if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
			t.Fatal(err)
		}
		trees.source = h
		refetched, ensured := make(chan error, 1), make(chan error, 1)
		go func() { refetched <- trees.refetch(t.Context(), h.tree) }()
		synctest.Wait()
		if err := remove(trees, h.tree); err != nil {
			t.Fatal(err)
		}
		go func() { ensured <- trees.Ensure(t.Context(), h.tree, func() {}) }()
		synctest.Wait()
		close(h.open)
		if err := <-refetched; err != nil && !errors.Is(err, errRemoved) {
			t.Errorf("the index that was fetched again: %v", err)
		}
		if err := <-ensured; err != nil {
			t.Errorf("the index of the removed tree: %v", err)
		}
		if got := files(t, trees); !slices.Equal(got, h.whole()) {
			t.Errorf("files %q, want %q", got, h.whole())
		}
		trees.Close()
	})
}

// A cancelled caller does not wait for the lock of a tree.
func TestLockOfATree(t *testing.T) {
	trees, tree := openTrees(t, newHub(t)), chunk.Sum([]byte("tree"))
	unlock := trees.Lock(tree)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := trees.serveAny(ctx, tree); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller got %v, want %v", err, context.Canceled)
	}
	unlock()
	if n := len(trees.locks.held); n != 0 {
		t.Errorf("%d locks are left without a user, want none", n)
	}
}
