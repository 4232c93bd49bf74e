package catalogtest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"lighter/hub/catalog"
)

// A repository has the upstream layers that were added to it, each once for a source.
func testUpstreams(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	one := catalog.Upstream{Repository: "example.org/one", Digest: "layer", Size: 7}
	two := catalog.Upstream{Repository: "example.org/two", PlainHTTP: true, Digest: "layer", Size: 7}
	other := catalog.Upstream{Repository: "example.org/one", Digest: "another layer", Size: 8}
	for range 2 {
		must(t, c.AddUpstreams(ctx, "a", []catalog.Upstream{two, one}))
	}
	must(t, c.AddUpstreams(ctx, "b", []catalog.Upstream{other}))
	for _, want := range []struct {
		repository, digest string
		at                 []catalog.Upstream
	}{
		{"a", "layer", []catalog.Upstream{one, two}}, {"b", "another layer", []catalog.Upstream{other}},
		{"b", "layer", nil}, {"a", "another layer", nil},
	} {
		if got, err := c.Upstreams(ctx, want.repository, want.digest); err != nil || !slices.Equal(got, want.at) {
			t.Errorf("%s of %s: %+v, %v, want %+v", want.digest, want.repository, got, err, want.at)
		}
	}
}

// A blob is deleted only if nobody has touched it. One process deletes it, and meanwhile nobody can
// touch it.
func testRegistryBlobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	b := c.Blobs
	begin := func(digest string, before time.Time, lease time.Duration, want bool) {
		t.Helper()
		if may, err := b.Begin(ctx, digest, before, lease); err != nil || may != want {
			t.Errorf("begin to delete %s: %t, %v, want %t", digest, may, err, want)
		}
	}
	later := func() time.Time {
		t.Helper()
		now, err := b.Now(ctx)
		must(t, err)
		return now.Add(time.Hour)
	}
	before, err := b.Now(ctx)
	must(t, err)
	must(t, b.Touch(ctx, []string{"a", "b", "a"}, 0))
	begin("a", before, long, false)
	begin("unknown", before, long, false)
	begin("a", later(), long, true)
	begin("a", later(), long, false)
	for _, interval := range []time.Duration{0, long} {
		if err := b.Touch(ctx, []string{"b", "a"}, interval); !errors.Is(err, catalog.ErrDeleting) {
			t.Errorf("touched a blob that is being deleted: %v, want ErrDeleting", err)
		}
	}
	if err := c.AddUpstreams(ctx, "r", []catalog.Upstream{{Digest: "a"}}); !errors.Is(err, catalog.ErrDeleting) {
		t.Errorf("added a layer that is being deleted: %v, want ErrDeleting", err)
	}
	must(t, b.End(ctx, "a"))
	must(t, b.Touch(ctx, []string{"a"}, 0))
	begin("a", before, long, false)
	for _, want := range []bool{true, false} { // whenever it was touched, but one process at a time
		if may, err := b.BeginAny(ctx, "a", long); err != nil || may != want {
			t.Errorf("begin to delete a touched blob: %t, %v, want %t", may, err, want)
		}
	}
	must(t, b.End(ctx, "a"))
	// The lease of a process that was killed ends.
	begin("b", later(), -time.Second, true)
	must(t, b.Touch(ctx, []string{"b"}, 0))
	begin("b", before, long, false)
	// A touch within the interval changes nothing, but a forgotten blob is noted again.
	must(t, b.Forget(ctx, later()))
	must(t, b.Touch(ctx, []string{"a"}, long))
	begin("a", before, long, false)

	layer := catalog.Upstream{Repository: "example.org/one", Digest: "layer", Size: 7}
	must(t, c.AddUpstreams(ctx, "r", []catalog.Upstream{layer}))
	begin("layer", before, long, false)
	all, err := c.Blobs.AllUpstreams(ctx)
	if err != nil || len(all) != 1 || all[0] != (catalog.RepositoryLayer{Name: "r", Upstream: layer}) {
		t.Errorf("all upstream layers: %+v, %v", all, err)
	}
	must(t, c.Blobs.RemoveUpstreams(ctx, "r", "layer"))
	if all, err := c.Blobs.AllUpstreams(ctx); err != nil || len(all) != 0 {
		t.Errorf("all upstream layers after removal: %+v, %v", all, err)
	}
	image := Publish(t, c, "added", "a")
	must(t, c.AddSource(ctx, []catalog.Image{image}, "example.org/one"))
	sources, err := c.Blobs.SourceLayers(ctx)
	if err != nil || len(sources) != 1 || sources[0].Name != "added" || sources[0].Repository != "example.org/one" ||
		sources[0].Digest != "blob of a" || sources[0].Size != 100 {
		t.Errorf("layers of sources: %+v, %v", sources, err)
	}
}
