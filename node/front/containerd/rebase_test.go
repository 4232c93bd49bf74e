package containerd

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// layer returns an option with the labels that containerd's unpacker sets if it unpacks layers in
// parallel: the layer's chain, and the chain below.
func layer(chain, below string) snapshots.Opt {
	labels := map[string]string{snapshots.LabelSnapshotRef: chain}
	if below != "" {
		labels[labelParentChain] = below
	}
	return snapshots.WithLabels(labels)
}

// If containerd unpacks in parallel, known layers become lazy snapshots without parent, and each
// protects the chain below it from containerd's garbage collector.
func TestParallelUnpackOfKnownLayers(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, chains := newTest(t, one, two)
	for chain, below := range map[string]string{one: "", two: one} {
		_, err := sn.Prepare(t.Context(), "extract "+chain, "", layer(chain, below))
		if !errdefs.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		info := must[snapshots.Info](t)(sn.Stat(t.Context(), find(t, sn, chain, "")))
		if info.Parent != "" || info.Labels[labelKeepBelow] != below {
			t.Errorf("chain %s: parent %q, labels %v; want no parent, and the chain below kept",
				chain, info.Parent, info.Labels)
		}
	}
	for _, c := range chains.claims {
		if c.Chain == two && c.Parent != one {
			t.Errorf("chain two was claimed on %q, want chain one", c.Parent)
		}
	}
	active := must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", find(t, sn, two, "")))
	if got := option(t, active, "lowerdir"); got != chains.tree(two) {
		t.Errorf("lower directory %s, want the tree of chain two", got)
	}
}

// Unknown layers on a known layer are unpacked in parallel, in overlays. Prepare mounts the known
// layer's tree before the unpacking, so that Commit can set the parents without asking a hub.
func TestParallelUnpackOnKnownLayers(t *testing.T) {
	one, two, three := chainID("1"), chainID("2"), chainID("3")
	sn, chains := newTest(t, one)
	ctx := t.Context()
	if _, err := sn.Prepare(ctx, "extract 1", "", layer(one, "")); !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	m2 := must[[]mount.Mount](t)(sn.Prepare(ctx, "extract 2", "", layer(two, one)))
	m3 := must[[]mount.Mount](t)(sn.Prepare(ctx, "extract 3", "", layer(three, two)))
	if !slices.Equal(chains.mounts, []string{one}) {
		t.Errorf("mounted %v before the unpack, want chain one", chains.mounts)
	}
	for _, m := range [][]mount.Mount{m2, m3} {
		// containerd's differ records whiteouts only on an overlay mount.
		if m[0].Type != "overlay" || option(t, m, "lowerdir") != filepath.Join(sn.dir, emptyDir) ||
			option(t, m, "workdir") == "" {
			t.Errorf("Prepare returned mounts %v, want an overlay on the empty directory", m)
		}
	}
	again := must[[]mount.Mount](t)(sn.Mounts(ctx, "extract 2"))
	if option(t, again, "upperdir") != option(t, m2, "upperdir") || again[0].Type != "overlay" {
		t.Errorf("Mounts returns %v, want %v as from Prepare", again, m2)
	}
	allow := chains.forbid()
	for _, c := range []struct{ name, key, parent, chain string }{
		{"2", "extract 2", find(t, sn, one, ""), two}, {"3", "extract 3", "2", three},
	} {
		if err := sn.Commit(ctx, c.name, c.key, ref(c.chain), snapshots.WithParent(c.parent)); err != nil {
			t.Fatal(err)
		}
	}
	allow()
	active := must[[]mount.Mount](t)(sn.Prepare(ctx, "key", "3"))
	want := strings.Join([]string{option(t, m3, "upperdir"), option(t, m2, "upperdir"), chains.tree(one)}, ":")
	if got := option(t, active, "lowerdir"); got != want {
		t.Errorf("lower directories %s, want %s", got, want)
	}
}

// If the tree below cannot be mounted, the layer is not unpacked.
func TestParallelUnpackOnAnUnavailableTree(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, chains := newTest(t, one)
	if _, err := sn.Prepare(t.Context(), "extract 1", "", layer(one, "")); !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	chains.fails[one] = errHubGone
	if _, err := sn.Prepare(t.Context(), "extract 2", "", layer(two, one)); !errdefs.IsUnavailable(err) {
		t.Errorf("error %v, want unavailable", err)
	}
}

func TestParallelUnpackOfUnknownLayersMountsNothing(t *testing.T) {
	sn, chains := newTest(t)
	bottom := must[[]mount.Mount](t)(sn.Prepare(t.Context(), "extract 1", "", layer(chainID("1"), "")))
	if bottom[0].Type != "bind" {
		t.Errorf("mounts of the lowest layer %v, want a bind mount", bottom)
	}
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "extract 2", "", layer(chainID("2"), chainID("1"))))
	if len(chains.mounts) != 0 {
		t.Errorf("mounted %v, want nothing", chains.mounts)
	}
}
