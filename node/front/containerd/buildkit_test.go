package containerd

import (
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"lighter/node/resolver"
)

// newBuildKit opens an empty store for BuildKit. Claim claims the known chains.
func newBuildKit(t *testing.T, known ...string) (BuildKit, *fakeChains) {
	t.Helper()
	chains := newFake(t)
	for _, c := range known {
		chains.known[c] = true
	}
	b, err := NewBuildKit(Config{Dir: filepath.Join(t.TempDir(), "build"), Log: discard}, chains)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	chains.sn = b.Snapshotter
	return b, chains
}

// buildRef returns BuildKit's reference of a layer.
func buildRef(chain string) string { return buildKitRef + strings.TrimPrefix(chain, "sha256:") }

// buildOpt returns the option with which BuildKit prepares the layer of an image.
func buildOpt(ref, image, layers string, more map[string]string) snapshots.Opt {
	labels := map[string]string{snapshots.LabelSnapshotRef: ref, labelImage: image,
		labelBuildReference: image, labelBuildLayers: layers,
		labelImage + ".u7x": image, "containerd.io/snapshot/remote/stargz.session.0.u7x": "secret"}
	maps.Copy(labels, more)
	return snapshots.WithLabels(labels)
}

// prepareBuild prepares a layer that the resolver claims.
func prepareBuild(t *testing.T, b BuildKit, parent string, opt snapshots.Opt) {
	t.Helper()
	if _, err := b.Prepare(t.Context(), "buildkit/1/tmp-x", parent, opt); !errdefs.IsAlreadyExists(err) {
		t.Fatalf("prepare a known layer: got %v, want that it exists", err)
	}
}

// BuildKit gets lazy snapshots under its own references of layers. The resolver gets the manifest
// of the reference that BuildKit has fetched, and no manifest that an image's annotations name.
func TestBuildKitsLayersAreClaimed(t *testing.T) {
	one, two, three := chainID("1"), chainID("2"), chainID("3")
	b, chains := newBuildKit(t, one, two, three)
	const digest = "sha256:0123"
	forged := map[string]string{labelManifest: "sha256:4567", labelLayers: "x,y,z"}
	prepare := func(parent string, opt snapshots.Opt) { t.Helper(); prepareBuild(t, b, parent, opt) }
	prepare("", buildOpt(buildRef(one), "r.test/a:1@"+digest, "x,y", forged))
	bottom := find(t, b.Snapshotter, buildRef(one), "")
	prepare(bottom, buildOpt(buildRef(two), "r.test/a:1@"+digest, "y", nil))
	prepare("", buildOpt(two, "r.test/b", "y", forged))                                   // BuildKit before 0.34
	prepare("", snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: one})) // a layer of a cache
	prepare("", snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: three,
		labelImage: "r.test/forged", labelManifest: digest})) // no label of BuildKit's

	want := []resolver.Request{
		{Chain: one, Reference: "r.test/a:1@" + digest, Manifest: digest, MoreAbove: true},
		{Chain: two, Parent: one, Reference: "r.test/a:1@" + digest, Manifest: digest},
		{Chain: two, Reference: "r.test/b"},
		{Chain: one},
		{Chain: three},
	}
	if !reflect.DeepEqual(chains.claims, want) {
		t.Errorf("claims\n%+v, want\n%+v", chains.claims, want)
	}
	info := must[snapshots.Info](t)(b.Stat(t.Context(), bottom))
	wantLabels := map[string]string{snapshots.LabelSnapshotRef: buildRef(one), labelImage: "r.test/a:1@" + digest,
		labelManifest: digest, labelLayers: "x,y", labelWhy: "it is known"}
	if !reflect.DeepEqual(info.Labels, wantLabels) {
		t.Errorf("labels of a lazy snapshot: got %v, want %v", info.Labels, wantLabels)
	}
	// BuildKit removes its temporary labels, of which there are none.
	info.Labels = map[string]string{labelImage + ".u7x": ""}
	if _, err := b.Update(t.Context(), info, "labels."+labelImage+".u7x"); err != nil {
		t.Error(err)
	}
	if name := find(t, b.Snapshotter, buildRef(one), ""); name != bottom {
		t.Errorf("after an update, reference and parent find %s, want %s", name, bottom)
	}
	if chain, lazy := chainOf(bottom); !lazy || chain != one {
		t.Errorf("chain of %s: %q, %v, want %q", bottom, chain, lazy, one)
	}
}

// BuildKit finds the directory with the changes of a build step by comparing two views: the view of
// the step has the same layers as the view of its parent, and one more.
func TestBuildKitsViewsShowTheChanges(t *testing.T) {
	one := chainID("1")
	b, chains := newBuildKit(t, one)
	prepareBuild(t, b, "", buildOpt(buildRef(one), "r.test/a", "x", nil))
	image := find(t, b.Snapshotter, buildRef(one), "")
	must[[]mount.Mount](t)(b.Prepare(t.Context(), "step", image))
	if err := b.Commit(t.Context(), "done", "step"); err != nil {
		t.Fatal(err)
	}
	lower := must[[]mount.Mount](t)(b.View(t.Context(), "lower", image))
	upper := must[[]mount.Mount](t)(b.View(t.Context(), "upper", "done"))
	if len(lower) != 1 || lower[0].Type != "bind" || lower[0].Source != chains.tree(one) {
		t.Errorf("view of a lazy image: %v, want a bind mount of %s", lower, chains.tree(one))
	}
	if got := option(t, upper, "lowerdir"); !strings.HasSuffix(got, "/fs:"+chains.tree(one)) {
		t.Errorf("view of a step: lowerdir=%s, want the step's directory and the image's tree", got)
	}
	again := must[[]mount.Mount](t)(b.Mounts(t.Context(), "lower"))
	if !reflect.DeepEqual(again, lower) {
		t.Errorf("mounts of the view: got %v, want %v", again, lower)
	}
}

// A node lists the layers of both snapshotters. A chain that one of them has lazily is lazy.
func TestLayersOfAllSnapshotters(t *testing.T) {
	one, two := chainID("1"), chainID("2")
	sn, _ := newTest(t)
	b, _ := newBuildKit(t, one)
	unpack(t, sn, "plain", "", one)
	unpack(t, sn, "other", "", two)
	prepareBuild(t, b, "", buildOpt(buildRef(one), "r.test/a", "x", nil))
	want := []Layer{
		{Chain: one, Lazy: true, Why: "it is known", Top: true, Image: "r.test/a"},
		{Chain: two, Why: "it is unknown", Top: true},
	}
	for _, all := range []Snapshotters{{sn, b.Snapshotter}, {b.Snapshotter, sn}} {
		if got := must[[]Layer](t)(all.Layers(t.Context())); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	users := must[map[string][]string](t)(Snapshotters{sn, b.Snapshotter}.Users(t.Context()))
	if len(users) != 0 {
		t.Errorf("users of lazy chains: %v, want none", users)
	}
}
