package trees

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// An index that is damaged on the disk is found when it is opened, and fetched again.
func TestDamage(t *testing.T) {
	change := func(name string, at int) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[(len(b)+at)%len(b)] ^= 1
			return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, b, 0o600))
		}
	}
	cut := func(name string, size int64) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			return errors.Join(os.Chmod(path, 0o600), os.Truncate(path, size))
		}
	}
	for i, damage := range []func(dir string) error{
		change("metadata", 5000), change("metadata", -1), cut("metadata", 4096), cut("metadata", 0),
		change("map", 9), change("map", -4096), change("map", -1), cut("map", 5000), cut("map", 0),
		func(dir string) error { return os.Remove(filepath.Join(dir, "metadata")) },
		func(dir string) error { return os.Remove(filepath.Join(dir, "map")) },
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			h := newHub(t)
			trees := openTrees(t, h)
			if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
				t.Fatal(err)
			}
			if err := damage(trees.dir(h.tree)); err != nil {
				t.Fatal(err)
			}
			valid := h.index
			h.index = nil // the hub does not have the index
			if _, _, err := trees.serveAny(t.Context(), h.tree); err == nil || !trees.Has(h.tree) {
				t.Errorf("a damaged tree was opened or removed: %v", err)
			}
			h.index = valid
			_, done, err := trees.serveAny(t.Context(), h.tree)
			if err != nil || h.asked.Load() != 3 {
				t.Fatalf("the hub was asked %d times, want 3: %v", h.asked.Load(), err)
			}
			done()
			if got := files(t, trees); !slices.Equal(got, h.whole()) {
				t.Errorf("files %q, want %q", got, h.whole())
			}
		})
	}
}

// A valid index on the disk is not fetched again when it is opened, even if the caller cancels.
func TestWholeIndexIsNotFetchedAgain(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	m, err := trees.openVerified(t.Context(), h.tree)
	if err != nil || h.asked.Load() != 1 {
		t.Fatalf("the hub was asked %d times, want 1: %v", h.asked.Load(), err)
	}
	m.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := trees.openVerified(ctx, h.tree); !errors.Is(err, context.Canceled) || h.asked.Load() != 1 {
		t.Errorf("cancelled: the hub was asked %d times, want 1: %v", h.asked.Load(), err)
	}
}
