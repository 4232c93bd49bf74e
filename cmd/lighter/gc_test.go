package main

import (
	"strings"
	"testing"

	"lighter/test/testkit/printed"
	"lighter/wire"
)

// A plan also says which packs would become smaller: their bytes are among those that come back.
func TestRewrittenPacksArePrinted(t *testing.T) {
	for rewritten, want := range map[int64]string{0: "", 1: "1 pack would be rewritten",
		3: "3 packs would be rewritten"} {
		plan := collection{Collection: &wire.Collection{DryRun: true, Rewritten: rewritten}}
		out, _ := printed.By(t, func() {
			if err := printCollection(plan); err != nil {
				t.Error(err)
			}
		})
		if !strings.Contains(out, want) || want == "" && strings.Contains(out, "rewritten") {
			t.Errorf("%d rewritten packs: printed\n%s", rewritten, out)
		}
	}
}
