package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"lighter/node/resolver"
)

// Prepare of a claimed layer makes a committed lazy snapshot with the client's labels and the
// reason. It mounts nothing.
func TestClaimedLayerExistsAtOnce(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, chains := newTest(t, one, two)
	bottom := unpack(t, sn, "a", "", one)
	top := unpack(t, sn, "b", bottom, two, snapshots.WithLabels(map[string]string{"containerd.io/snapshot/hint": "x"}))

	info := must[snapshots.Info](t)(sn.Stat(t.Context(), top))
	want := map[string]string{snapshots.LabelSnapshotRef: two, "containerd.io/snapshot/hint": "x",
		labelWhy: "it is known"}
	if info.Kind != snapshots.KindCommitted || info.Parent != bottom || !reflect.DeepEqual(info.Labels, want) {
		t.Errorf("lazy snapshot %+v, want parent %q and labels %v", info, bottom, want)
	}
	wantCalls := []resolver.Request{{Chain: one}, {Chain: two, Parent: one}}
	if !reflect.DeepEqual(chains.claims, wantCalls) {
		t.Errorf("claims %v, want %v", chains.claims, wantCalls)
	}
	if len(chains.mounts)+len(chains.releases) != 0 {
		t.Errorf("claims mounted %v and released %v, want neither", chains.mounts, chains.releases)
	}
}

// A chain has one lazy snapshot for each parent, which all namespaces share. Walk lists lazy
// snapshots before plain snapshots of the same chain.
func TestOneSnapshotPerChainAndParent(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, chains := newTest(t, two)
	plain := unpack(t, sn, "0/1/plain", "", one)
	chains.known[one] = true
	lazy := unpack(t, sn, "z/2/lazy", "", one)
	if lazy == plain {
		t.Fatal("Walk lists the plain snapshot of another namespace before the lazy snapshot")
	}
	names := map[string]bool{}
	for _, parent := range []string{plain, lazy, ""} {
		names[unpack(t, sn, "x", parent, two)] = true
	}
	if len(names) != 3 {
		t.Errorf("one chain on three parents has %d snapshots, want 3", len(names))
	}
	defer chains.forbid()()
	for _, parent := range []string{plain, lazy, ""} {
		if name := unpack(t, sn, "y", parent, two); !names[name] {
			t.Errorf("another namespace got snapshot %s, want one of %v", name, names)
		}
	}
}

// A layer is claimed only if its reference is a chainID. A view is never claimed.
func TestOnlyChainIDsAreClaimed(t *testing.T) {
	sn, chains := newTest(t)
	for _, ref := range []string{"", "x", "sha512:" + strings.Repeat("1", 128), "sha256:" + strings.Repeat("A", 64),
		chainID("1") + "0", " " + chainID("1")} {
		labels := map[string]string{}
		if ref != "" {
			labels[snapshots.LabelSnapshotRef] = ref
		}
		if _, err := sn.Prepare(t.Context(), "key of "+ref, "", snapshots.WithLabels(labels)); err != nil {
			t.Errorf("reference %q: got error %v, want none", ref, err)
		}
	}
	if _, err := sn.View(t.Context(), "view", "", ref(chainID("1"))); err != nil {
		t.Error(err)
	}
	if len(chains.claims) != 0 {
		t.Errorf("claims %v, want none", chains.claims)
	}
}

func TestMissingParent(t *testing.T) {
	sn, chains := newTest(t, chainID("1"))
	defer chains.forbid()()
	if _, err := sn.Prepare(t.Context(), "key", "missing", ref(chainID("1"))); !errdefs.IsNotFound(err) {
		t.Errorf("error %v, want not found", err)
	}
}

// The lower directories of a snapshot are those of the plain snapshots below it, down to the first
// lazy chain, and the tree of that chain.
func TestLowerDirectories(t *testing.T) {
	one, two, three := chainID("1"), chainID("2"), chainID("3")
	sn, chains := newTest(t, one, three)
	lazy1 := unpack(t, sn, "1", "", one)
	plain2 := unpack(t, sn, "2", lazy1, two)
	lazy3 := unpack(t, sn, "3", plain2, three)
	plain4 := unpack(t, sn, "4", lazy3, chainID("4"))
	plain5 := unpack(t, sn, "5", plain4, chainID("5"))
	dirOf := func(name string) string { return upper(t, sn, name) }
	for parent, want := range map[string][]string{
		lazy1:  {chains.tree(one)},
		plain2: {dirOf(plain2), chains.tree(one)},
		lazy3:  {chains.tree(three)},
		plain4: {dirOf(plain4), chains.tree(three)},
		plain5: {dirOf(plain5), dirOf(plain4), chains.tree(three)},
	} {
		active := must[[]mount.Mount](t)(sn.Prepare(t.Context(), "active on "+parent, parent))
		if got := option(t, active, "lowerdir"); got != strings.Join(want, ":") || active[0].Type != "overlay" {
			t.Errorf("active on %s: %v, want lower directories %v", parent, active, want)
		}
		view := must[[]mount.Mount](t)(sn.View(t.Context(), "view of "+parent, parent))
		if len(want) == 1 { // so that the view is an overlay, which has an option for the SELinux label
			want = append(want, filepath.Join(sn.dir, emptyDir))
		}
		if got := option(t, view, "lowerdir"); got != strings.Join(want, ":") || view[0].Type != "overlay" ||
			option(t, view, "upperdir") != "" {
			t.Errorf("view of %s: %v, want lower directories %v", parent, view, want)
		}
		for key, first := range map[string][]mount.Mount{"active on " + parent: active, "view of " + parent: view} {
			if again := must[[]mount.Mount](t)(sn.Mounts(t.Context(), key)); !reflect.DeepEqual(again, first) {
				t.Errorf("Mounts returns %v, want %v as before", again, first)
			}
		}
	}
}

// An active snapshot on a chain leads to a call of NoteStart, a view does not.
func TestStarts(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	plain := unpack(t, sn, "2", "", chainID("2"))
	must[[]mount.Mount](t)(sn.View(t.Context(), "view", lazy))
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "plain", plain))
	if len(chains.starts) > 0 {
		t.Errorf("starts %v, want none", chains.starts)
	}
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "active", lazy))
	must[[]mount.Mount](t)(sn.Mounts(t.Context(), "active")) // the container may start again
	if !slices.Equal(chains.starts, []string{one, one}) {
		t.Errorf("starts %v, want two", chains.starts)
	}
}

// upper returns the directory of a committed plain snapshot.
func upper(t *testing.T, sn *Snapshotter, name string) string {
	t.Helper()
	key := "temporary view of " + name
	mounts := must[[]mount.Mount](t)(sn.View(t.Context(), key, name))
	if err := sn.Remove(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if mounts[0].Type == "bind" {
		return mounts[0].Source
	}
	first, _, _ := strings.Cut(option(t, mounts, "lowerdir"), ":")
	return first
}

// The root of an active snapshot's upper directory has the owner of the tree's root.
func TestUpperRootHasOwnerOfTheTree(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	// A user other than root can change only the group, and only to one of the user's groups.
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 1234, 5678
	} else if groups, err := os.Getgroups(); err == nil && len(groups) > 0 {
		gid = groups[len(groups)-1]
	}
	if err := os.MkdirAll(chains.tree(one), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(chains.tree(one), uid, gid); err != nil {
		t.Fatal(err)
	}
	mounts := must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", lazy))
	info := must[os.FileInfo](t)(os.Stat(option(t, mounts, "upperdir")))
	stat := info.Sys().(*syscall.Stat_t)
	if int(stat.Uid) != uid || int(stat.Gid) != gid || info.Mode().Perm() != 0o755 {
		t.Errorf("owner %d:%d, mode %v; want %d:%d, 0755", stat.Uid, stat.Gid, info.Mode(), uid, gid)
	}
}

// If a tree cannot be mounted, the error is of the kind unavailable, names chain, cause and remedy,
// and no snapshot is left.
func TestUnavailableTree(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	// The kind of the error must not be that of its cause.
	chains.fails[one] = errors.Join(errHubGone, errdefs.ErrNotFound)
	before := entries(t, sn)
	for _, do := range []func() error{
		func() error { _, err := sn.Prepare(t.Context(), "key", lazy); return err },
		func() error { _, err := sn.View(t.Context(), "key", lazy); return err },
		func() error { _, err := sn.Prepare(t.Context(), "extract", lazy, ref(chainID("2"))); return err },
	} {
		err := do()
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
			t.Errorf("error %v, want unavailable", err)
		}
		for _, word := range []string{one, errHubGone.Error(), "ctr images rm"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("error %q, want %q in it", err, word)
			}
		}
	}
	if _, err := sn.Stat(t.Context(), "key"); !errdefs.IsNotFound(err) {
		t.Errorf("the snapshot that could not be mounted: got %v, want not found", err)
	}
	if after := entries(t, sn); !slices.Equal(before, after) {
		t.Errorf("entries %v, want %v as before", after, before)
	}
	chains.fails[one] = nil
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", lazy))
	chains.fails[one] = errHubGone
	if _, err := sn.Mounts(t.Context(), "key"); !errdefs.IsUnavailable(err) {
		t.Errorf("Mounts: error %v, want unavailable", err)
	}
}

func entries(t *testing.T, sn *Snapshotter) (names []string) {
	t.Helper()
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(sn.dir)) {
		names = append(names, e.Name())
	}
	return names
}

// If the client goes away during a claim, Prepare makes no snapshot.
func TestCancelledClient(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	chains.onClaim = cancel
	if _, err := sn.Prepare(ctx, "key", "", ref(one)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
	if _, err := sn.Stat(t.Context(), "key"); !errdefs.IsNotFound(err) {
		t.Errorf("the cancelled client's snapshot: got %v, want not found", err)
	}
}

// Calls that need neither a claim nor a mounted tree do not wait for a hub.
func TestLocalWorkNeedsNoHub(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", lazy))
	defer chains.forbid()()
	ctx := t.Context()
	if err := sn.Commit(ctx, "name", "key"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{lazy, "name"} {
		must[snapshots.Info](t)(sn.Stat(ctx, name))
		must[snapshots.Usage](t)(sn.Usage(ctx, name))
		must[snapshots.Info](t)(sn.Update(ctx, snapshots.Info{Name: name, Labels: map[string]string{"a": "b"}}))
	}
	if err := errors.Join(sn.Remove(ctx, "name"), sn.Remove(ctx, lazy), sn.Cleanup(ctx)); err != nil {
		t.Error(err)
	}
	if got := entries(t, sn); !slices.Equal(got, []string{emptyDir, "metadata.db"}) {
		t.Errorf("got entries %v, want none of snapshots", got)
	}
}

// A chain with two snapshots is released when the second of them is removed. Only the last
// snapshot's usage is that of the chain.
func TestLastSnapshotReleasesItsChain(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	base := unpack(t, sn, "base", "", chainID("9"))
	first, second := unpack(t, sn, "1", "", one), unpack(t, sn, "2", base, one)
	chains.releases = nil
	usage := func(name string) snapshots.Usage { return must[snapshots.Usage](t)(sn.Usage(t.Context(), name)) }
	if usage(first) != (snapshots.Usage{}) || usage(second) != (snapshots.Usage{}) {
		t.Errorf("usage of two snapshots of one chain: got %+v and %+v; want 0, because one removal frees nothing",
			usage(first), usage(second))
	}
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", second))
	if err := sn.Remove(t.Context(), second); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removal of a parent: error %v, want failed precondition", err)
	}
	if err := errors.Join(sn.Remove(t.Context(), "key"), sn.Remove(t.Context(), second)); err != nil {
		t.Fatal(err)
	}
	if len(chains.releases) != 0 {
		t.Errorf("released %v, want nothing while the chain has a snapshot", chains.releases)
	}
	if usage(first) != (snapshots.Usage{Size: 4711, Inodes: 1}) {
		t.Errorf("usage %+v, want that of the chain", usage(first))
	}
	if err := sn.Remove(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(chains.releases, []string{one}) {
		t.Errorf("released %v, want chain one", chains.releases)
	}
}

// A client can neither give a snapshot the name of a lazy snapshot, nor change the label by which
// containerd finds a lazy snapshot.
func TestClientsCannotMakeOrBreakLaziness(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, _ := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	ctx := t.Context()
	forged := lazyName(two, noParent)
	_, err := sn.Prepare(ctx, forged, "")
	_, err2 := sn.View(ctx, forged, "")
	must[[]mount.Mount](t)(sn.Prepare(ctx, "key", ""))
	for _, err := range []error{err, err2, sn.Commit(ctx, forged, "key")} {
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("a reserved name: error %v, want invalid argument", err)
		}
	}
	for _, paths := range [][]string{nil, {"labels"}, {"labels." + snapshots.LabelSnapshotRef}} {
		info := snapshots.Info{Name: lazy, Labels: map[string]string{snapshots.LabelSnapshotRef: two}}
		must[snapshots.Info](t)(sn.Update(ctx, info, paths...))
		if find(t, sn, one, "") != lazy {
			t.Errorf("after an update of %v, the lazy snapshot is not found by its chain", paths)
		}
	}
	must[snapshots.Info](t)(sn.Update(ctx, snapshots.Info{Name: lazy}))
	if find(t, sn, one, "") != lazy {
		t.Error("after an update without labels, the lazy snapshot is not found by its chain")
	}
}

// chainOf returns the chain of a name that lazyName has made, and refuses other names.
func TestNamesRoundTrip(t *testing.T) {
	for _, parentID := range []string{noParent, "17"} {
		if chain, ok := chainOf(lazyName(chainID("a"), parentID)); !ok || chain != chainID("a") {
			t.Errorf("%s: got chain %q, %v; want %q", lazyName(chainID("a"), parentID), chain, ok, chainID("a"))
		}
	}
	for _, name := range []string{"", "default/1/" + chainID("a"), chainID("a"), "*lazy",
		filepath.Join("x", lazyPrefix, chainID("a"), "0")} {
		if chain, ok := chainOf(name); ok {
			t.Errorf("%q: got chain %s, want none", name, chain)
		}
	}
}

// A pull in another namespace gets the lazy snapshot of a chain if it is a pull of the same image,
// or of an image that may have the chain (Allow). Otherwise the layer is unpacked.
func TestLazySnapshotsOfOtherImages(t *testing.T) {
	chain := chainID("1")
	sn, chains := newTest(t, chain)
	pull := func(image, manifest string) snapshots.Opt {
		return snapshots.WithLabels(map[string]string{labelImage: image, labelManifest: manifest})
	}
	lazy := unpack(t, sn, "one/1", "", chain, pull("registry.test/app:1", "sha256:app"))
	chains.refused = errors.New("it is another image")
	if got := unpack(t, sn, "two/1", "", chain, pull("registry.test/app:1", "sha256:app")); got != lazy {
		t.Errorf("the same image got %s, want %s", got, lazy)
	}
	for _, forged := range []snapshots.Opt{pull("registry.test/app:1", "sha256:forged"),
		pull("registry.test/forged:1", "sha256:app"), pull("", "")} {
		mounts, err := sn.Prepare(t.Context(), "three/1", "", forged, ref(chain))
		if err != nil || len(mounts) == 0 {
			t.Errorf("mounts %v, error %v; want the layer unpacked", mounts, err)
		}
		if err := sn.Remove(t.Context(), "three/1"); err != nil {
			t.Fatal(err)
		}
	}
	chains.refused = nil
	if got := unpack(t, sn, "four/1", "", chain, pull("registry.test/other:1", "sha256:other")); got != lazy {
		t.Errorf("an image that may have the chain got %s, want %s", got, lazy)
	}
}
