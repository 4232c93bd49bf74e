package trees

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Lost lists a tree whose metadata image is damaged while it is served, until the tree is removed.
func TestScrub(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Fatal(err)
	}
	m, err := trees.openVerified(t.Context(), h.tree)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	trees.served[h.tree] = m
	const rate = 1 << 30
	if n, err := trees.Scrub(t.Context(), rate); n != 0 || err != nil || len(trees.Lost()) > 0 {
		t.Errorf("an intact image: %d damaged, %v, want 0; lost %v, want none", n, err, trees.Lost())
	}
	path := filepath.Join(trees.dir(h.tree), "metadata")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[5000] ^= 1
	if err := errors.Join(os.Chmod(path, 0o600), write(path, b)); err != nil {
		t.Fatal(err)
	}
	if n, err := trees.Scrub(t.Context(), rate); n != 1 || err != nil || trees.Lost()[h.tree] == nil {
		t.Errorf("a damaged image: %d damaged, %v, want 1; lost %v, want its tree", n, err, trees.Lost())
	}
	delete(trees.served, h.tree)
	if err := remove(trees, h.tree); err != nil || len(trees.Lost()) > 0 {
		t.Errorf("removed: %v; lost %v, want none", err, trees.Lost())
	}
}
