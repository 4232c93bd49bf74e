package main

import (
	"strings"
	"testing"

	"lighter/test/testkit/printed"
	"lighter/wire"
)

// A plan also says how many packs would be replaced by smaller ones.
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
			t.Errorf("%d rewritten packs: printed\n%s\nwant %q", rewritten, out, want)
		}
	}
}

// A plan names the last image of each tree, and the bytes of packs.
func TestPlanIsPrinted(t *testing.T) {
	plan := collection{Collection: &wire.Collection{DryRun: true, Trees: 1, Packs: 2, PackBytes: 3 << 20,
		Bytes: 4 << 20, Released: 1,
		Unserved: []wire.Unserved{{Tree: strings.Repeat("7", 64), Name: "team/a:1", Goes: true}}}}
	out, _ := printed.By(t, func() {
		if err := printCollection(plan); err != nil {
			t.Error(err)
		}
	})
	for _, want := range []string{"team/a:1", "2 packs (" + size(3<<20) + ") would be freed: " + size(4<<20),
		"a dry run does not ask"} {
		if !strings.Contains(out, want) {
			t.Errorf("printed\n%s\nwant %q", out, want)
		}
	}
}
