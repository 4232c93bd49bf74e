package hub_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/wire"
)

// report reports that a node has these trees, and returns those that the hub does not have.
func (h *testHub) report(holder string, trees ...chunk.ID) []chunk.ID {
	h.t.Helper()
	unknown, err := originsOf(h.t, h.client).SendHeld(h.t.Context(), 0,
		wire.Held{Holder: holder, Kind: wire.HolderNode, Name: "node", Trees: trees})
	if err != nil {
		h.t.Fatal(err)
	}
	return unknown.Trees
}

// holders returns the holders of an image, or all if the name is empty.
func (h *testHub) holders(name string) []wire.Holder {
	h.t.Helper()
	holders, err := h.client.Holders(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return holders
}

// While a node holds the tree of a removed image, the hub serves the tree and its chain, but does
// not list the image.
func TestHeldImageStaysServed(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar, upperTar))
	h.push("b:1", image(upperTar))
	a, b := h.ready("a:1"), h.ready("b:1")
	want, wanted := h.fetchTree(a.Chain)
	tree, err := chunk.ParseID(a.Tree)
	if err != nil {
		t.Fatal(err)
	}
	node, never := strings.Repeat("7", 32), chunk.ID{1}
	if unknown := h.report(node, tree, never); !slices.Equal(unknown, []chunk.ID{never}) {
		t.Errorf("unknown trees %v, want %v", unknown, never)
	}
	for _, name := range []string{"", "a:1"} {
		if all := h.holders(name); len(all) != 1 || all[0].ID != node[:16] || all[0].Trees != 1 ||
			all[0].Name != "node" {
			t.Errorf("holders of %q: %+v, want the node with one tree", name, all)
		}
	}
	if all := h.holders("b:1"); len(all) != 0 {
		t.Errorf("holders of an image that no node has: %+v, want none", all)
	}
	for _, name := range []string{"a:1", "b:1"} {
		if err := h.client.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if images, err := h.client.Images(t.Context(), ""); err != nil || len(images) > 0 {
		t.Errorf("images %+v, %v, want none", images, err)
	}
	h.expect("/lighter/1/default/manifests/"+a.Digest, 404)
	h.expect("/lighter/1/default/chains/"+b.Chain, 404)
	chain, err := h.client.Chain(t.Context(), a.Chain)
	if err != nil || chain.Statement == nil || chain.Statement.Tree != tree {
		t.Errorf("the chain of a held tree: %+v, %v, want it with its statement", chain, err)
	}
	if got, chunks := h.fetchTree(a.Chain); got != want || !maps.EqualFunc(chunks, wanted, slices.Equal) {
		t.Errorf("the held tree is %+v, want %+v with the same chunks", got, want)
	}
	if err := h.client.ForgetHolder(t.Context(), node[:16]); err != nil {
		t.Fatal(err)
	}
	h.expect("/lighter/1/default/chains/"+a.Chain, 404)
	if all := h.holders(""); len(all) != 0 {
		t.Errorf("holders after the last one was forgotten: %+v, want none", all)
	}
}

// A mirror is a holder of all trees in its directory.
func TestMirrorHolds(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.push("a:1", image(lowerTar))
	h.push("b:1", image(upperTar))
	a := h.ready("a:1")
	h.ready("b:1")
	dir := filepath.Join(t.TempDir(), "mirror")
	for i, name := range []string{"a:1", "b:1"} {
		if done, _ := h.mirror(dir, name); done.NotHeld != "" {
			t.Errorf("the mirror was not reported: %s", done.NotHeld)
		}
		if all := h.holders(""); len(all) != 1 || all[0].Kind != wire.HolderMirror || all[0].Trees != int64(i+1) {
			t.Errorf("holders after run %d: %+v, want one with all trees so far", i, all)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, ".holder")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mirror's ID: %v, %v, want a file that only its owner can read", info, err)
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.fetchTree(a.Chain)
	if err := h.client.ForgetHolder(t.Context(), "none"); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("forget an unknown holder: %v, want not found", err)
	}
}
