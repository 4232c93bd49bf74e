package catalogtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/wire"
)

// A repository has the upstream layers that were added to it, each of them once for each source.
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

// A process may delete a blob only if the blob was not touched since a given time. Meanwhile no
// other process may delete the blob, and nobody can touch it.
func testRegistryBlobs(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	b := c.Blobs
	begin := func(digest string, before time.Time, lease time.Duration, want bool) catalog.Deletion {
		t.Helper()
		d, may, err := b.Begin(ctx, digest, before, lease)
		if err != nil || may != want {
			t.Errorf("begin to delete %s: %t, %v, want %t", digest, may, err, want)
		}
		return d
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
	a := begin("a", later(), long, true)
	begin("a", later(), long, false)
	for _, interval := range []time.Duration{0, long} {
		if err := b.Touch(ctx, []string{"b", "a"}, interval); !errors.Is(err, catalog.ErrDeleting) {
			t.Errorf("touched a blob that is being deleted: %v, want ErrDeleting", err)
		}
	}
	if err := c.AddUpstreams(ctx, "r", []catalog.Upstream{{Digest: "a"}}); !errors.Is(err, catalog.ErrDeleting) {
		t.Errorf("added a layer that is being deleted: %v, want ErrDeleting", err)
	}
	must(t, b.End(ctx, a))
	must(t, b.Touch(ctx, []string{"a"}, 0))
	begin("a", before, long, false)
	a, may, err := b.BeginAny(ctx, "a", long) // whenever it was touched, but one process at a time
	if err != nil || !may {
		t.Errorf("begin to delete a touched blob: got %t (%v), want true", may, err)
	}
	if _, may, err := b.BeginAny(ctx, "a", long); err != nil || may {
		t.Errorf("begin to delete a blob that another process is deleting: got %t (%v), want false", may, err)
	}
	must(t, b.End(ctx, a))
	testLostDeletion(t, c)
	testDeletionOfSeveral(t, c)
	// The lease of a process that was killed ends.
	begin("b", later(), -time.Second, true)
	must(t, b.Touch(ctx, []string{"b"}, 0))
	begin("b", before, long, false)
	// A touch within the interval does not update a blob's time, but it records a forgotten blob.
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
	must(t, c.Blobs.RemoveUpstreams(ctx, all))
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

// A deletion of several blobs is of those that nobody has touched and no other process is deleting.
// All of them are free again when it ends.
func testDeletionOfSeveral(t *testing.T, c *catalog.Catalog) {
	t.Helper()
	ctx := t.Context()
	b := c.Blobs
	must(t, b.Touch(ctx, []string{"old 1", "old 2", "deleted"}, 0))
	time.Sleep(2 * time.Millisecond)
	before, err := b.Now(ctx)
	must(t, err)
	other, may, err := b.BeginAny(ctx, "deleted", long)
	if err != nil || !may {
		t.Fatalf("begin to delete: %t, %v", may, err)
	}
	must(t, b.Touch(ctx, []string{"new"}, 0))
	several := []string{"old 2", "new", "deleted", "unseen", "old 1", "old 2"}
	want := []string{"old 1", "old 2"}
	unused, err := b.Unused(ctx, several, before)
	if slices.Sort(unused); err != nil || !slices.Equal(unused, want) {
		t.Errorf("unused: %q, %v, want %q", unused, err, want)
	}
	d, err := b.BeginAll(ctx, several, before, long)
	if err != nil || !slices.Equal(d.Digests(), want) {
		t.Errorf("begin to delete several: %q, %v, want %q", d.Digests(), err, want)
	}
	if again, err := b.BeginAll(ctx, several, before, long); err != nil || len(again.Digests()) > 0 {
		t.Errorf("begin to delete them again: %q, %v, want none", again.Digests(), err)
	}
	for _, digest := range want {
		if err := b.Touch(ctx, []string{"new", digest}, 0); !errors.Is(err, catalog.ErrDeleting) {
			t.Errorf("touched %s, which is being deleted: %v, want ErrDeleting", digest, err)
		}
	}
	must(t, b.End(ctx, d))
	must(t, b.Touch(ctx, append(want, "new", "unseen"), 0))
	if err := b.Touch(ctx, []string{"deleted"}, 0); !errors.Is(err, catalog.ErrDeleting) {
		t.Errorf("touched a blob that another process is deleting: %v, want ErrDeleting", err)
	}
	must(t, b.End(ctx, other))
	none, err := b.BeginAll(ctx, nil, before, long)
	must(t, errors.Join(err, b.End(ctx, none)))
}

// A process whose lease to delete a blob has ended does not delete the blob, and does not end the
// deletion by another process.
func testLostDeletion(t *testing.T, c *catalog.Catalog) {
	t.Helper()
	ctx := t.Context()
	do := func(d catalog.Deletion) (called bool, err error) {
		err = d.Do(ctx, func(context.Context) error {
			called = true
			return nil
		})
		return called, err
	}
	lost, may, err := c.Blobs.BeginAny(ctx, "stopped", -time.Second)
	if err != nil || !may {
		t.Fatalf("begin to delete: %t, %v", may, err)
	}
	next, may, err := c.Blobs.BeginAny(ctx, "stopped", long)
	if err != nil || !may {
		t.Fatalf("begin to delete when the other lease has ended: %t, %v", may, err)
	}
	if called, err := do(lost); called || err == nil {
		t.Errorf("a deletion whose lease has ended: called %t, %v", called, err)
	}
	must(t, c.Blobs.End(ctx, lost))
	if err := c.Blobs.Touch(ctx, []string{"stopped"}, 0); !errors.Is(err, catalog.ErrDeleting) {
		t.Errorf("touched a blob that another process is deleting: %v, want ErrDeleting", err)
	}
	if called, err := do(next); !called || err != nil {
		t.Errorf("a deletion within its lease: called %t, %v", called, err)
	}
	must(t, c.Blobs.End(ctx, next))
	must(t, c.Blobs.Touch(ctx, []string{"stopped"}, 0))
}

// When an image loses a name, its manifest and its index are touched.
func testManifestsOfRemovedImages(t *testing.T, c *catalog.Catalog) {
	ctx := t.Context()
	name := func(root string, manifests ...string) {
		t.Helper()
		var images []catalog.Image
		for _, digest := range manifests {
			images = append(images, catalog.Image{Root: root, Digest: digest, State: wire.StateStored})
		}
		_, err := c.Name(ctx, "a:1", images, catalog.Job{Kind: kind, Key: "a:1", Root: root})
		must(t, err)
	}
	before, err := c.Blobs.Now(ctx)
	must(t, err)
	touched := func(want ...string) {
		t.Helper()
		got, err := c.Blobs.Touched(ctx, before)
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("touched %q, %v, want %q", got, err, want)
		}
		must(t, c.Blobs.Forget(ctx, before.Add(time.Hour)))
	}
	name("one", "amd64", "arm64")
	touched()
	name("two", "amd64", "riscv64")
	touched("arm64", "one")
	must(t, c.Blobs.Touch(ctx, []string{"amd64"}, 0))
	must(t, c.Remove(ctx, kind, "a:1", ""))
	touched("amd64", "riscv64", "two")
}
