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

func TestClaimedLayerIsThereAtOnce(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, chains := newTest(t, one, two)
	bottom := unpack(t, sn, "a", "", one)
	top := unpack(t, sn, "b", bottom, two, snapshots.WithLabels(map[string]string{"containerd.io/snapshot/hint": "x"}))

	info := must[snapshots.Info](t)(sn.Stat(t.Context(), top))
	want := map[string]string{snapshots.LabelSnapshotRef: two, "containerd.io/snapshot/hint": "x", labelWhy: "it is ours"}
	if info.Kind != snapshots.KindCommitted || info.Parent != bottom || !reflect.DeepEqual(info.Labels, want) {
		t.Errorf("lazy snapshot: %+v", info)
	}
	wantCalls := []resolver.Request{{Chain: one}, {Chain: two, Parent: one}}
	if !reflect.DeepEqual(chains.claims, wantCalls) {
		t.Errorf("claims %v, want %v", chains.claims, wantCalls)
	}
	if len(chains.mounts)+len(chains.releases) != 0 {
		t.Errorf("claiming mounted %v and released %v", chains.mounts, chains.releases)
	}
}

func TestOneSnapshotPerChainAndParent(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, chains := newTest(t, two)
	plain := unpack(t, sn, "0/1/plain", "", one)
	chains.known[one] = true
	lazy := unpack(t, sn, "z/2/lazy", "", one)
	if lazy == plain {
		t.Fatal("the plain snapshot of another namespace came before the lazy one")
	}
	names := map[string]bool{}
	for _, parent := range []string{plain, lazy, ""} {
		names[unpack(t, sn, "x", parent, two)] = true
	}
	if len(names) != 3 {
		t.Errorf("three parents have %d snapshots", len(names))
	}
	defer chains.sleep()()
	for _, parent := range []string{plain, lazy, ""} {
		if name := unpack(t, sn, "y", parent, two); !names[name] {
			t.Errorf("another namespace was given another snapshot: %s", name)
		}
	}
}

func TestOnlyChainIDsAreAskedFor(t *testing.T) {
	sn, chains := newTest(t)
	for _, ref := range []string{"", "x", "sha512:" + strings.Repeat("1", 128), "sha256:" + strings.Repeat("A", 64), chainID("1") + "0", " " + chainID("1")} {
		labels := map[string]string{}
		if ref != "" {
			labels[snapshots.LabelSnapshotRef] = ref
		}
		if _, err := sn.Prepare(t.Context(), "key of "+ref, "", snapshots.WithLabels(labels)); err != nil {
			t.Errorf("reference %q: %v", ref, err)
		}
	}
	if _, err := sn.View(t.Context(), "view", "", ref(chainID("1"))); err != nil {
		t.Error(err)
	}
	if len(chains.claims) != 0 {
		t.Errorf("claims %v", chains.claims)
	}
}

func TestMissingParent(t *testing.T) {
	sn, chains := newTest(t, chainID("1"))
	defer chains.sleep()()
	if _, err := sn.Prepare(t.Context(), "key", "missing", ref(chainID("1"))); !errdefs.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
}

func TestWhatLiesBelow(t *testing.T) {
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
		if len(want) == 1 { // an overlay all the same: what a view is labelled with is an option of it
			want = append(want, filepath.Join(sn.dir, emptyDir))
		}
		if got := option(t, view, "lowerdir"); got != strings.Join(want, ":") || view[0].Type != "overlay" || option(t, view, "upperdir") != "" {
			t.Errorf("view of %s: %v, want lower directories %v", parent, view, want)
		}
		for key, first := range map[string][]mount.Mount{"active on " + parent: active, "view of " + parent: view} {
			if again := must[[]mount.Mount](t)(sn.Mounts(t.Context(), key)); !reflect.DeepEqual(again, first) {
				t.Errorf("Mounts says %v, at first it was %v", again, first)
			}
		}
	}
}

// What containers write to starts; a view is only looked at.
func TestWhatStarts(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	plain := unpack(t, sn, "2", "", chainID("2"))
	must[[]mount.Mount](t)(sn.View(t.Context(), "view", lazy))
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "plain", plain))
	if len(chains.starts) > 0 {
		t.Errorf("starts: %v", chains.starts)
	}
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "active", lazy))
	must[[]mount.Mount](t)(sn.Mounts(t.Context(), "active")) // it may have stopped, and its tree have been unmounted
	if !slices.Equal(chains.starts, []string{one, one}) {
		t.Errorf("starts: %v", chains.starts)
	}
}

// upper returns the directory with what a committed plain snapshot adds.
func upper(t *testing.T, sn *Snapshotter, name string) string {
	t.Helper()
	key := "only to look at " + name
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

func TestUpperRootBelongsToTheTreesRoot(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	// Without root, the group is all that can be changed, if there is a second one.
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

func TestTreeThatCannotBeHad(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	// errdefs' errors in the cause must not shine through.
	chains.fails[one] = errors.Join(errHubGone, errdefs.ErrNotFound)
	before := entries(t, sn)
	for _, do := range []func() error{
		func() error { _, err := sn.Prepare(t.Context(), "key", lazy); return err },
		func() error { _, err := sn.View(t.Context(), "key", lazy); return err },
		func() error { _, err := sn.Prepare(t.Context(), "extract", lazy, ref(chainID("2"))); return err },
	} {
		err := do()
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
			t.Errorf("error %v", err)
		}
		for _, word := range []string{one, errHubGone.Error(), "ctr images rm"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("error %q does not say %q", err, word)
			}
		}
	}
	if _, err := sn.Stat(t.Context(), "key"); !errdefs.IsNotFound(err) {
		t.Errorf("the snapshot is still there: %v", err)
	}
	if after := entries(t, sn); !slices.Equal(before, after) {
		t.Errorf("left behind: %v, before there was %v", after, before)
	}
	chains.fails[one] = nil
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", lazy))
	chains.fails[one] = errHubGone
	if _, err := sn.Mounts(t.Context(), "key"); !errdefs.IsUnavailable(err) {
		t.Errorf("Mounts: error %v", err)
	}
}

func entries(t *testing.T, sn *Snapshotter) (names []string) {
	t.Helper()
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(sn.dir)) {
		names = append(names, e.Name())
	}
	return names
}

func TestClientThatLeaves(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	chains.onClaim = cancel
	if _, err := sn.Prepare(ctx, "key", "", ref(one)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := sn.Stat(t.Context(), "key"); !errdefs.IsNotFound(err) {
		t.Errorf("a snapshot for nobody: %v", err)
	}
}

func TestLocalWorkNeedsNoHub(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	lazy := unpack(t, sn, "1", "", one)
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", lazy))
	defer chains.sleep()()
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
		t.Errorf("left behind: %v", got)
	}
}

func TestLastSnapshotReleasesItsChain(t *testing.T) {
	one := chainID("1")
	sn, chains := newTest(t, one)
	base := unpack(t, sn, "base", "", chainID("9"))
	first, second := unpack(t, sn, "1", "", one), unpack(t, sn, "2", base, one)
	chains.releases = nil
	usage := func(name string) snapshots.Usage { return must[snapshots.Usage](t)(sn.Usage(t.Context(), name)) }
	if usage(first) != (snapshots.Usage{}) || usage(second) != (snapshots.Usage{}) {
		t.Error("removing one of two snapshots of a chain frees nothing, but Usage says otherwise")
	}
	must[[]mount.Mount](t)(sn.Prepare(t.Context(), "key", second))
	if err := sn.Remove(t.Context(), second); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removing a parent: %v", err)
	}
	if err := errors.Join(sn.Remove(t.Context(), "key"), sn.Remove(t.Context(), second)); err != nil {
		t.Fatal(err)
	}
	if len(chains.releases) != 0 {
		t.Errorf("released %v while a snapshot refers to it", chains.releases)
	}
	if usage(first) != (snapshots.Usage{Size: 4711, Inodes: 1}) {
		t.Errorf("usage %+v", usage(first))
	}
	if err := sn.Remove(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(chains.releases, []string{one}) {
		t.Errorf("released %v", chains.releases)
	}
}

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
			t.Errorf("a reserved name: %v", err)
		}
	}
	for _, paths := range [][]string{nil, {"labels"}, {"labels." + snapshots.LabelSnapshotRef}} {
		info := snapshots.Info{Name: lazy, Labels: map[string]string{snapshots.LabelSnapshotRef: two}}
		must[snapshots.Info](t)(sn.Update(ctx, info, paths...))
		if find(t, sn, one, "") != lazy {
			t.Errorf("update of %v hides the chain", paths)
		}
	}
	must[snapshots.Info](t)(sn.Update(ctx, snapshots.Info{Name: lazy}))
	if find(t, sn, one, "") != lazy {
		t.Error("an update without labels hides the chain")
	}
}

func TestNamesRoundTrip(t *testing.T) {
	for _, parentID := range []string{noParent, "17"} {
		if chain, ok := chainOf(lazyName(chainID("a"), parentID)); !ok || chain != chainID("a") {
			t.Errorf("%s: %q, %v", lazyName(chainID("a"), parentID), chain, ok)
		}
	}
	for _, name := range []string{"", "default/1/" + chainID("a"), chainID("a"), "*lazy", filepath.Join("x", lazyPrefix, chainID("a"), "0")} {
		if chain, ok := chainOf(name); ok {
			t.Errorf("%q is lazy: %s", name, chain)
		}
	}
}

// What one namespace has lazily another has too, for the same image; for another one only if
// that may have the chain. Else it is unpacked.
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
	for _, forged := range []snapshots.Opt{pull("registry.test/app:1", "sha256:forged"), pull("registry.test/forged:1", "sha256:app"), pull("", "")} {
		mounts, err := sn.Prepare(t.Context(), "three/1", "", forged, ref(chain))
		if err != nil || len(mounts) == 0 {
			t.Errorf("what is not allowed is not unpacked: %v, %v", mounts, err)
		}
		if err := sn.Remove(t.Context(), "three/1"); err != nil {
			t.Fatal(err)
		}
	}
	chains.refused = nil
	if got := unpack(t, sn, "four/1", "", chain, pull("registry.test/other:1", "sha256:other")); got != lazy {
		t.Errorf("another image that may have it got %s, want %s", got, lazy)
	}
}
