package catalogtest

import (
	"fmt"
	"testing"

	"lighter/hub/catalog"
)

// Hints about one image are one hint. A hint that comes during a look stays.
func testHints(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	one := catalog.Hint{Hook: "h", Repository: "a/b", Reference: "1"}
	two := catalog.Hint{Hook: "h", Repository: "a/b"}
	must(t, c.Hints.Add(ctx, []catalog.Hint{one, two, one}))
	must(t, c.Hints.Add(ctx, []catalog.Hint{one, {Hook: "g", Repository: "a/b"}}))
	of := func(want string) (hints []catalog.Hint) {
		t.Helper()
		hints, err := c.Hints.Of(ctx, "h", 10)
		must(t, err)
		got := ""
		for _, h := range hints {
			if h.Reference == "1" {
				got += fmt.Sprintf("%s:%s %d", h.Repository, h.Reference, h.Serial)
			}
		}
		if got != want {
			t.Errorf("hints: %q, want %q", got, want)
		}
		return hints
	}
	before := of("a/b:1 2")
	must(t, c.Hints.Add(ctx, []catalog.Hint{one}))
	must(t, c.Hints.Looked(ctx, before))
	of("a/b:1 3")
	must(t, c.Hints.Looked(ctx, of("a/b:1 3")))
	if counts, err := c.Hints.Count(ctx); err != nil || fmt.Sprint(counts) != "map[g:1]" {
		t.Errorf("hints: %v, %v, want one of the other hook", counts, err)
	}

	for _, name := range []string{"a/b:1", "a/b:2", "a/b/c:1", "a/bc:1"} {
		Publish(t, c, name, "a")
	}
	for digest, want := range map[string]string{"": "[a/b:1 a/b:2]", "a/b:2": "[a/b:2]", "a/bc:1": "[]"} {
		if names, err := c.Hints.NamesOf(ctx, "a/b", digest, 10); err != nil || fmt.Sprint(names) != want {
			t.Errorf("names with the digest %q: %v, %v, want %s", digest, names, err, want)
		}
	}
}
