package trees

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"lighter/format/chunk"
)

// gatedHub gives no index before open is closed.
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

// An index comes for all callers that wait for it: one that is cancelled leaves the others,
// also if it came first, and the last one ends the download.
func TestFetchOutlivesItsFirstCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := gated(newHub(t))
		trees := openTrees(t, h.fakeHub)
		trees.source = h
		ensure := func(ctx context.Context) (err <-chan error, begun <-chan struct{}) {
			done, began := make(chan error, 1), make(chan struct{}, 1)
			go func() { done <- trees.Ensure(ctx, h.tree, func() { began <- struct{}{} }) }()
			synctest.Wait()
			return done, began
		}
		first, cancelFirst := context.WithCancel(t.Context())
		defer cancelFirst()
		gone, _ := ensure(first)
		waits, begun := ensure(t.Context())
		cancelFirst()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller, which was cancelled: %v", err)
		}
		synctest.Wait()
		close(h.open)
		if err := <-waits; err != nil || !trees.Has(h.tree) || len(begun) != 1 {
			t.Errorf("the second caller: %v; told %d times that the index begins", err, len(begun))
		}

		h.open = make(chan struct{})
		trees.source = h
		if err := remove(trees, h.tree); err != nil {
			t.Fatal(err)
		}
		last, cancelLast := context.WithCancel(t.Context())
		defer cancelLast()
		gone, _ = ensure(last)
		cancelLast()
		<-gone
		synctest.Wait()
		if left := files(t, trees); len(left) > 0 {
			t.Errorf("nobody waits, and there are %q", left)
		}
		close(h.open)
		if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
			t.Errorf("a caller after the last one was cancelled: %v", err)
		}
	})
}

// slowHub has two trees: the index of the one comes late.
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

// likeTree returns a hub with another tree whose ID begins like the given one's.
func likeTree(t *testing.T, tree chunk.ID) *fakeHub {
	t.Helper()
	for n := 0; ; n++ {
		if h := newHubOf(t, fmt.Sprint("file ", n), someChunk); h.tree[0]%64 == tree[0]%64 && h.tree != tree {
			return h
		}
	}
}

// While the damaged index of a tree is fetched once more, for a mount or for readers, no
// other tree waits, nor does who unmounts or removes this one.
func TestSlowTreeDelaysNoOther(t *testing.T) {
	for name, use := range map[string]func(ctx context.Context, trees *Store, tree chunk.ID) error{
		"mounted": func(ctx context.Context, trees *Store, tree chunk.ID) error {
			_, _, err := trees.Device(ctx, tree)
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
				_, done, err := trees.Device(ctx, other.tree)
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
				t.Error("others wait for an index that does not come")
			}
			cancel()
			if err := <-used; !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that was cancelled: %v", err)
			}
		})
	}
}

// What is fetched once more for readers of a tree that is removed meanwhile is thrown away.
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
			t.Errorf("it was published after its removal: %v, %q", err, files(t, trees))
		}
	})
}

// A caller that is cancelled does not wait for the lock of a tree, which others hold.
func TestLockOfATree(t *testing.T) {
	trees, tree := openTrees(t, newHub(t)), chunk.Sum([]byte("tree"))
	unlock := trees.locks.lock(tree)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := trees.Device(ctx, tree); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	unlock()
	if n := len(trees.locks.all); n != 0 {
		t.Errorf("%d locks are left of trees that nobody uses", n)
	}
}
