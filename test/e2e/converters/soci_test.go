//go:build peers

package converters

import (
	"testing"

	"lighter/test/testkit/images"
	"lighter/test/testkit/referrers"
	"lighter/test/testkit/site"
)

// SOCI's tool makes an image with an index of version 2, and pushes one of version 1 beside an
// unchanged image. That is found by the fallback tag at distribution, and by the referrers API at a
// registry that has it. With a zTOC for all layers, and without one for those of less than 10 MiB.
func TestSOCI(t *testing.T) {
	other := referrers.Start(t)
	s, layout := start(t, other)
	for _, smallest := range []string{"0", "10485760"} {
		ref := site.Reference("lazy/soci-v2-" + smallest)
		do(t, tool(t, "soci"), "convert", "--min-layer-size", smallest, "--plain-http", original, ref)
		startsLazily(t, s, ref, 20<<20, nothing)

		ref = site.Reference("lazy/soci-v1-" + smallest)
		if err := s.Push(t.Context(), layout, "lazy/soci-v1-"+smallest); err != nil {
			t.Fatal(err)
		}
		do(t, tool(t, "soci"), "create", "--min-layer-size", smallest, "--plain-http", ref)
		startsLazily(t, s, ref, 20<<20, nothing)

		image, err := images.Open(layout)
		if err != nil {
			t.Fatal(err)
		}
		ref = other.Push(t, image, "lazy/soci-v1-"+smallest)
		do(t, tool(t, "soci"), "create", "--min-layer-size", smallest, "--plain-http", ref)
		startsLazily(t, s, ref, 20<<20, nothing)
	}
}
