package trees

import (
	"path/filepath"
	"testing"

	"lighter/test/testkit/immutable"
)

// Leftovers lists files that cannot be removed. They do not keep a tree from being recovered or
// fetched.
func TestLeftovers(t *testing.T) {
	h := newHub(t)
	trees := openTrees(t, h)
	var want []string
	for _, prefix := range []string{newPrefix, oldPrefix} {
		path := filepath.Join(trees.root, "trees", prefix+h.tree.String())
		immutable.Dir(t, filepath.Join(path, "below"))
		want = append(want, path)
	}
	if err := trees.Recover(false); err != nil {
		t.Fatal(err)
	}
	if err := trees.Ensure(t.Context(), h.tree, func() {}); err != nil {
		t.Errorf("fetch a tree that has leftovers: %v", err)
	}
	for _, name := range []string{localNew, localOld, localDir} { // the last is a local device without its file
		path := filepath.Join(trees.dir(h.tree), name)
		immutable.Dir(t, filepath.Join(path, "below"))
		want = append(want, path)
	}
	if err := trees.UseRoom(&room{}); err != nil {
		t.Fatal(err)
	}
	if _, has := trees.HasLocal(h.tree); has {
		t.Error("a leftover counts as a local device")
	}
	left := trees.Leftovers()
	for _, path := range want {
		found := false
		for _, l := range left {
			found = found || l.Path == path && l.Cause != ""
		}
		if !found {
			t.Errorf("%s is not listed: %+v", path, left)
		}
	}
	if len(left) != len(want) {
		t.Errorf("listed: %+v, want %q", left, want)
	}
}
