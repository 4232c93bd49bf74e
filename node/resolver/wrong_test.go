package resolver

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
)

// No chain is claimed for a tree that is refused, whether the tree is on this machine or not, and
// it is not mounted. Other trees are.
func TestRefusedTrees(t *testing.T) {
	errWrong := errors.New("a layer differs from its table")
	wrong := map[chunk.ID]bool{}
	h := &fakeHub{answer: stack(1), key: key, local: true}
	h.tree = func(context.Context, string) (*index.Statement, error) { return statement(1), nil }
	trees := &fakeTrees{t: t, onDisk: map[chunk.ID]bool{}}
	keys, err := NewKeys(t.TempDir(), nil, h)
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, h, Config{Root: t.TempDir(), Trees: trees, Keys: keys, Log: slog.New(slog.DiscardHandler),
		Refused: func(tree chunk.ID) error {
			if wrong[tree] {
				return errWrong
			}
			return nil
		}})
	if lazy := pull(t, r, 1); !slices.Equal(lazy, []bool{true, true}) {
		t.Fatalf("before: claimed %v", lazy)
	}
	if _, err := r.Mount(t.Context(), chainID(1)); err != nil {
		t.Fatal(err)
	}
	wrong[treeID(1)] = true
	trees.takeCalls()
	for n := range 2 {
		if err := claimErr(t, r, n); !errors.Is(err, errWrong) {
			t.Errorf("chain %d: claim: %v", n, err)
		}
	}
	if _, err := r.Mount(t.Context(), chainID(1)); !errors.Is(err, errWrong) {
		t.Errorf("mount: %v", err)
	}
	delete(trees.onDisk, treeID(1)) // the statement of the hub counts now
	clear(r.states)
	for n := range 2 {
		if err := claimErr(t, r, n); !errors.Is(err, errWrong) {
			t.Errorf("chain %d, without the tree: claim: %v", n, err)
		}
	}
	if calls := trees.takeCalls(); len(calls) > 0 {
		t.Errorf("calls %v, want none", calls)
	}
	clear(wrong)
	if _, err := r.Mount(t.Context(), chainID(1)); err != nil {
		t.Errorf("another tree: %v", err)
	}
}
