package catalogtest

import (
	"slices"
	"testing"

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
