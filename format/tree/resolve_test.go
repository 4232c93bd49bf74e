package tree

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/continuity/fs"
)

// TestResolveIsRootPath compares resolve with continuity's fs.RootPath, which containerd uses, on
// random trees with symlinks.
func TestResolveIsRootPath(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	// No symlink may lead to files of this machine, which fs.RootPath would read.
	words := []string{"tree-a", "tree-b", "tree-c", "tree-d", "tree-a", "tree-b", "..", ".", "tree-a/tree-b"}
	word := func() string { return words[r.IntN(len(words))] }
	name := func(most int) string {
		parts := make([]string, 1+r.IntN(most))
		for i := range parts {
			parts[i] = word()
		}
		p := strings.Join(parts, "/")
		if r.IntN(4) == 0 {
			p = "/" + p
		}
		if r.IntN(6) == 0 {
			p += "/"
		}
		return p
	}
	refused := 0
	for range 200 { // most of the time is spent on making the trees
		root := t.TempDir()
		u := newUnpacker(&budget{ctx: t.Context()}, nil)
		grow(t, r, root, u, word, name)
		for range 50 {
			p := name(5)
			u.budget.steps = maxSteps - 2000
			got, gotErr := u.resolve(p)
			if u.budget.steps > maxSteps {
				continue // the path grows with each link: fs.RootPath would take a second
			}
			want, wantErr := fs.RootPath(root, p)
			if (gotErr != nil) != (wantErr != nil) {
				t.Fatalf("resolve %q: error %v, want %v", p, gotErr, wantErr)
			}
			if gotErr != nil {
				refused++
				continue
			}
			if path := filepath.Join(root, got.path); path != want {
				t.Fatalf("resolve %q: got %q, want %q", p, path, want)
			}
			if _, err := os.Lstat(want); (err == nil) != (got.node != nil) {
				t.Fatalf("resolve %q: got found %v, want what lstat says: %v", p, got.node != nil, err)
			}
		}
	}
	if refused < 100 {
		t.Errorf("only %d paths had errors", refused)
	}
}

// grow creates the same directories, files and symlinks in both.
func grow(t *testing.T, r *rand.Rand, root string, u *unpacker, word func() string, name func(int) string) {
	t.Helper()
	for range 12 {
		at, err := u.resolve(name(3))
		if err != nil || at.node != nil && !at.node.IsDir() {
			continue
		}
		base := word()
		if strings.ContainsAny(base, "./") {
			continue
		}
		if at.node, err = u.parent(at); err != nil {
			t.Fatal(err)
		}
		if u.lookup(at.node, base) != nil {
			continue
		}
		dir := filepath.Join(root, at.path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		n := &Node{Mode: ModeRegular}
		if r.IntN(8) > 0 {
			n = &Node{Mode: ModeSymlink, Link: name(4)}
			err = os.Symlink(n.Link, filepath.Join(dir, base))
		} else {
			err = os.WriteFile(filepath.Join(dir, base), nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := u.insert(at.node, base, n); err != nil {
			t.Fatal(err)
		}
	}
}
