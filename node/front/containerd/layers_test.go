package containerd

import (
	"reflect"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
)

// Layers lists lazy layers, plain layers and a layer that is still being unpacked, and tells which
// of them are on top of an image.
func TestLayers(t *testing.T) {
	base, mid, top, plain, last := chainID("1"), chainID("2"), chainID("3"), chainID("4"), chainID("5")
	sn, _ := newTest(t, base, mid, top)
	labels := func(layers string) snapshots.Opt {
		return snapshots.WithLabels(map[string]string{labelLayers: layers,
			labelImage: "registry.test/image of " + layers})
	}
	below := unpack(t, sn, "one", "", base, labels("a,b,c"))
	below = unpack(t, sn, "one", below, mid, labels("b,c"))
	unpack(t, sn, "one", below, top, labels("c"))
	// Another image, without labels, whose last layer is still being unpacked. Its client names
	// committed snapshots by their chains.
	below = "default/1/" + plain
	must[any](t)(sn.Prepare(t.Context(), "default/1/extract", "", ref(plain)))
	if err := sn.Commit(t.Context(), below, "default/1/extract"); err != nil {
		t.Fatal(err)
	}
	must[any](t)(sn.Prepare(t.Context(), "default/2/extract", below, ref(last)))
	must[any](t)(sn.Prepare(t.Context(), "default/3/container", below))

	const known, unknown = "it is known", "it is unknown"
	want := []Layer{
		{Chain: base, Lazy: true, Why: known},
		{Chain: mid, Lazy: true, Why: known},
		{Chain: top, Lazy: true, Why: known, Top: true, Image: "registry.test/image of c"},
		{Chain: plain, Why: unknown},
		{Chain: last, Why: unknown, Top: true},
	}
	if got := must[[]Layer](t)(sn.Layers(t.Context())); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := sn.Remove(t.Context(), "default/2/extract"); err != nil {
		t.Fatal(err)
	}
	got := must[[]Layer](t)(sn.Layers(t.Context()))
	if len(got) != 4 || !got[3].Top || got[3].Lazy {
		t.Errorf("without the last layer: got %+v, want the plain layer below on top", got)
	}
}

// The reason why an image is lazy or not survives a restart. If a client did not name the chain
// that it unpacked, the reason says so.
func TestWhyIsKept(t *testing.T) {
	lazy, plain, nameless := chainID("1"), chainID("2"), chainID("3")
	sn, chains := newTest(t, lazy)
	unpack(t, sn, "lazy", "", lazy)
	unpack(t, sn, "plain", "", plain)
	must[any](t)(sn.Prepare(t.Context(), "default/1/extract", ""))
	if err := sn.Commit(t.Context(), "default/1/"+nameless, "default/1/extract"); err != nil {
		t.Fatal(err)
	}
	if err := sn.Close(); err != nil {
		t.Fatal(err)
	}
	want := []Layer{
		{Chain: lazy, Lazy: true, Top: true, Why: "it is known"},
		{Chain: plain, Top: true, Why: "it is unknown"},
		{Chain: nameless, Top: true, Why: whyUnnamed},
	}
	if got := must[[]Layer](t)(open(t, sn.dir, chains).Layers(t.Context())); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Two images share a base layer, which is the top of the smaller image. If the larger image was
// pulled first, the base layer gets the smaller image's name when that image is pulled in another
// namespace. The larger image's name stays.
func TestNameOfALowerImage(t *testing.T) {
	base, top := chainID("1"), chainID("2")
	sn, _ := newTest(t, base, top)
	labels := func(image, layers string) snapshots.Opt {
		return snapshots.WithLabels(map[string]string{labelLayers: layers, labelImage: image})
	}
	below := unpack(t, sn, "one", "", base, labels("above", "a,b"))
	unpack(t, sn, "one", below, top, labels("above", "b"))
	for _, pull := range []struct{ image, layers string }{{"another", "a,c"}, {"lower", "a"}, {"again", "a"}} {
		if name := unpack(t, sn, "two", "", base, labels(pull.image, pull.layers)); name != below {
			t.Errorf("unpacked as %q, want %q", name, below)
		}
	}
	want := []Layer{
		{Chain: base, Lazy: true, Why: "it is known", Top: true, Image: "lower"},
		{Chain: top, Lazy: true, Why: "it is known", Top: true, Image: "above"},
	}
	if got := must[[]Layer](t)(sn.Layers(t.Context())); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
