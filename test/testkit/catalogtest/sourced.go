package catalogtest

import (
	"bytes"
	"slices"
	"testing"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/wire"
)

// Sourced lists the ready images of other registries: with the top chain, its tree, and the startup
// packs of the tree's layout.
func testSourced(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	own := Publish(t, c, "own", "a")
	one, two := Publish(t, c, "one", "a", "b"), Publish(t, c, "two", "a", "c")
	active, _ := begin(t, c, "active")
	must(t, c.AddSource(ctx, []catalog.Image{one, active}, "example.org/x"))
	must(t, c.AddSource(ctx, []catalog.Image{two, one}, "example.org/a"))
	list := func(digest string) (got []string, all []catalog.Sourced) {
		t.Helper()
		all, err := c.Sourced(ctx, digest)
		must(t, err)
		for _, s := range all {
			if s.Tree != TreeOf(s.Chain) || s.Updated.IsZero() {
				t.Errorf("an image of another registry is %+v", s)
			}
			got = append(got, s.Source+" "+s.Digest+" "+s.Chain)
		}
		return got, all
	}
	oneIn := []string{"example.org/a one a/b", "example.org/x one a/b"}
	for digest, want := range map[string][]string{"": append(slices.Clip(oneIn), "example.org/a two a/c"), "one": oneIn,
		own.Digest: nil, active.Digest: nil, "none": nil} {
		if got, _ := list(digest); !slices.Equal(got, want) {
			t.Errorf("images with the digest %q: %q, want %q", digest, got, want)
		}
	}
	_, before := list("two")
	setLayout(t, c, TreeOf("a/c"), chunk.Sum([]byte("pack")))
	_, after := list("two")
	l, err := c.Starts.Layout(ctx, TreeOf("a/c"))
	must(t, err)
	if len(before) != 1 || len(after) != 1 || !bytes.Equal(after[0].Startup, l.Startup) {
		t.Errorf("the layout has %+v, and the image %+v; before: %+v", l, after, before)
	}
	must(t, c.Remove(ctx, kind, "two", ""))
	if got, _ := list(""); !slices.Equal(got, oneIn) {
		t.Errorf("after a removal: %q, want %q", got, oneIn)
	}
}

// The last job of each key counts, also after it has ended. AddNew changes no open job.
func testLastJobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	add := func(key, payload string) int64 {
		t.Helper()
		n, err := c.Jobs.AddNew(ctx, catalog.Job{Kind: kind, Key: key, Payload: []byte(payload)})
		must(t, err)
		return n
	}
	first := add("a", "1")
	if first == 0 || add("a", "2") != 0 {
		t.Errorf("the first job has number %d; want it, and no second one while it is open", first)
	}
	end(t, c, claim(t, c, "x", "a"), catalog.Outcome{State: wire.JobDone, Result: []byte(`"made"`)}, wire.JobDone)
	wantLast := func(want map[string]string) {
		t.Helper()
		last, err := c.Jobs.LastOf(ctx, kind)
		must(t, err)
		if len(last) != len(want) {
			t.Errorf("last jobs are %+v, want %v", last, want)
		}
		for key, w := range want {
			j := last[key]
			if got := string(j.State) + " " + string(j.Payload) + " " + string(j.Result); got != w {
				t.Errorf("the last job of %s is %q, want %q", key, got, w)
			}
		}
	}
	wantLast(map[string]string{"a": `done 1 "made"`})
	if add("a", "3") <= first {
		t.Error("an ended job is not followed by a new one")
	}
	add("b", "4")
	addJob(t, c, catalog.Job{Kind: "other", Key: "c"}, long)
	wantLast(map[string]string{"a": "queued 3 ", "b": "queued 4 "})
}
