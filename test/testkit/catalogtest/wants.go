package catalogtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"lighter/hub/catalog"
)

func lookAt(name string) catalog.Job { return catalog.Job{Kind: catalog.LookJob, Key: name} }

// wanters returns who wants an image, in brackets if they have dropped it.
func wanters(t *testing.T, c *catalog.Catalog, name string) string {
	t.Helper()
	all, err := c.Wants.Of(t.Context(), name)
	must(t, err)
	var by []string
	for _, w := range all {
		if w.Dropped {
			w.By = "(" + w.By + ")"
		}
		by = append(by, w.By)
	}
	return strings.Join(by, " ")
}

func testWants(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	expect := func(name, want string) {
		t.Helper()
		if got := wanters(t, c, name); got != want {
			t.Errorf("%s is wanted by %q, want %q", name, got, want)
		}
	}
	list := catalog.Want{Name: "new:1", By: "list a", Source: "docker://other/new:1", Platforms: []string{"x/y", "x/z"}}
	must(t, c.Wants.Add(ctx, []catalog.Want{list}, lookAt))
	expect("new:1", "list a") // nobody has pushed it
	Publish(t, c, "old:1", "layer")
	for _, by := range []string{"list a", "hook b", "list c"} {
		must(t, c.Wants.Add(ctx, []catalog.Want{{Name: "old:1", By: by, ByRules: by == "list c"}}, nil))
	}
	expect("old:1", "hand hook b list a list c")
	keepers, err := c.Wants.Keepers(ctx, "")
	if err != nil || len(keepers) != 2 || keepers["old:1"] != "list a" {
		t.Errorf("keepers: %v, %v, want list a of both images", keepers, err)
	}

	// What was seen counts until the want changes.
	all, err := c.Wants.By(ctx, "list a")
	must(t, err)
	if len(all) != 2 || all[0].Name != "new:1" || !slices.Equal(all[0].Platforms, list.Platforms) || all[0].Any ||
		!all[1].Any || all[1].Have != 0 {
		t.Errorf("wants of list a: %+v", all)
	}
	seen := func(want string) {
		t.Helper()
		if all, err := c.Wants.Of(ctx, "new:1"); err != nil || all[0].Seen != want {
			t.Errorf("seen %+v, %v, want %q", all, err, want)
		}
	}
	must(t, c.Wants.Looked(ctx, all[0].Want, "digest", ""))
	must(t, c.Wants.Add(ctx, []catalog.Want{list}, nil))
	seen("digest")
	list.Platforms = nil
	must(t, c.Wants.Add(ctx, []catalog.Want{list}, nil))
	seen("")

	// A look is queued when nobody wants the image any more.
	must(t, c.Wants.Drop(ctx, "list a", []string{"new:1", "old:1", "unknown:1"}, lookAt))
	expect("new:1", "(list a)")
	expect("old:1", "hand hook b (list a) list c")
	if open, err := c.Jobs.OpenOf(ctx, catalog.LookJob); err != nil || len(open) != 1 || open[0].Key != "new:1" {
		t.Errorf("looks: %+v, %v, want one at new:1", open, err)
	}
	// A removal ends the wants of persons and hooks, unless a look is due.
	must(t, c.Wants.Add(ctx, []catalog.Want{{Name: "old:1", By: "hook d"}}, lookAt))
	must(t, c.Remove(ctx, kind, "old:1", ""))
	expect("old:1", "hook b hook d list c")
	open, err := c.Jobs.Open(ctx, catalog.LookJob, "old:1")
	must(t, err)
	_, err = c.Jobs.Cancel(ctx, open.N)
	must(t, err)
	must(t, c.Remove(ctx, kind, "old:1", ""))
	expect("old:1", "list c")
	if all, err := c.Wants.Of(ctx, "old:1"); err != nil || !all[0].Released {
		t.Errorf("wants of a removed image: %+v, %v, want it released", all, err)
	}
	// A push makes a person want it again.
	Publish(t, c, "old:1", "layer")
	expect("old:1", "hand list c")
	must(t, c.Wants.Forget(ctx, "new:1"))
	expect("new:1", "")
}

// Wanters that change many wants at the same time do not block each other.
func testWantsUnderContention(t *testing.T, c *catalog.Catalog) {
	const names, each = 40, 4
	var work sync.WaitGroup
	for n := range each {
		work.Go(func() {
			by := fmt.Sprintf("list %d", n)
			var wants []catalog.Want
			var all []string
			for i := range names {
				name := fmt.Sprintf("image:%d", (i*7+n)%names)
				wants, all = append(wants, catalog.Want{Name: name, By: by}), append(all, name)
			}
			for range 3 {
				if err := c.Wants.Add(t.Context(), wants, lookAt); err != nil {
					t.Error(err)
				}
				if err := c.Wants.Drop(t.Context(), by, all, lookAt); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	for i := range names {
		if unwanted, err := c.Wants.IsUnwanted(t.Context(), fmt.Sprintf("image:%d", i)); err != nil || !unwanted {
			t.Errorf("image %d is unwanted: %v, %v, want true", i, unwanted, err)
		}
	}
}
