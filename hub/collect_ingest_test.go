package hub_test

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/ingest"
	"lighter/hub/report"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// prepare ingests an image up to its publication. publish publishes it.
func (h *testHub) prepare(name string, i fakeImage) (publish func() error) {
	h.t.Helper()
	publish, err := h.prepareFrom(name, i, func(s ingest.Source) ingest.Source { return s })
	if err != nil {
		h.t.Fatal(err)
	}
	return publish
}

// prepareFrom is prepare. wrap is called after the image was pushed, and returns the source that
// the ingestion reads.
func (h *testHub) prepareFrom(
	name string, i fakeImage, wrap func(ingest.Source) ingest.Source,
) (publish func() error, err error) {
	h.t.Helper()
	ctx, c := h.t.Context(), h.Catalog()
	repository, _, _ := strings.Cut(name, ":")
	d := h.push(repository, i).String()
	const kind = "test" // the hub does not run it
	job := catalog.Job{Kind: kind, Key: name, Root: d}
	images, err := c.Name(ctx, name, []catalog.Image{{Name: name, Root: d, Digest: d, Platform: "linux/amd64",
		State: wire.StateQueued}}, job)
	if err != nil {
		h.t.Fatal(err)
	}
	if job, err = c.Jobs.Claim(ctx, h.Owner(), []catalog.Slot{{Kind: kind}}, time.Hour); err != nil {
		h.t.Fatal(err)
	}
	if err := c.Begin(ctx, job.Lease(), images[0].N); err != nil {
		h.t.Fatal(err)
	}
	ingester := ingest.New(c, h.Publisher(), encoder.NewPool(1), h.Trees(), h.Log())
	source := wrap(h.Registry().Repository(repository))
	prepared, err := ingester.Prepare(ctx, images[0], source, job.Lease(), &report.Progress{})
	if err != nil {
		return nil, err
	}
	return func() error {
		defer prepared.Close()
		return prepared.Publish(ctx)
	}, nil
}

// If a collection removes chunks and layers that an image in ingestion needs, the publication
// fails, so the ingestion begins again.
func TestCollectionDuringIngestion(t *testing.T) {
	t.Parallel()
	for name, i := range map[string]fakeImage{
		"the same layer":             image(layer(1, 2)),
		"the same chunks":            image(layer(2, 1)),
		"another layer on the layer": image(layer(1, 2), layer(3)),
		"the layer on another layer": image(layer(3), layer(1, 2)),
		"chunks that the tree hides": image(layer(2), tarball.Of(tarball.Whiteout("file-2"))),
		"the same layer, other bytes": {layers: []fakeLayer{{tar: layer(1, 2), blob: layer(1, 2),
			mediaType: v1.MediaTypeImageLayer}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.laid("keeps:1", image(layer(9)))
			h.laid("goes:1", image(layer(1, 2)))
			h.remove("goes:1")
			prepared := h.prepare("new:1", i)
			if done := h.collect(0); done.Trees != 1 || done.Layers != 1 || done.Packs != 1 {
				t.Fatalf("the collection has done %+v, want one tree, layer and pack freed", done)
			}
			if err := prepared(); err == nil || !strings.Contains(err.Error(), catalog.ErrCollected.Error()) {
				t.Errorf("error %v, want one that says that a collection has removed something", err)
			}
			h.consistent()
		})
	}
}

// An image that is published while a collection runs keeps everything that it needs, also objects
// that the collection was about to remove.
func TestIngestionDuringCollection(t *testing.T) {
	t.Parallel()
	for step, i := range map[string]fakeImage{
		"before trees":  image(layer(1, 2)),
		"before layers": image(layer(2, 1), layer(1, 2)),
		"before packs":  image(layer(2, 1)),
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.laid("keeps:1", image(layer(9)))
			h.laid("goes:1", image(layer(1, 2)))
			h.remove("goes:1")
			prepared := h.prepare("new:1", i)
			published := false
			h.Collector().Step = func(name string) {
				if name == step && !published {
					published = true
					if err := prepared(); err != nil {
						t.Error(err)
					}
				}
			}
			h.collect(0)
			if !published {
				t.Fatalf("the collection has not reached the step %q", step)
			}
			h.collect(0)
			h.fetchTree(h.settled("new:1")[0].Chain)
		})
	}
}

// If two images with common chunks are ingested at the same time, both store these chunks. The
// collection frees one copy.
func TestChunksThatWereStoredTwiceAreFreed(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	first, second := h.prepare("a:1", image(layer(1, 2, 3))), h.prepare("b:1", image(layer(3, 2, 1)))
	for _, publish := range []func() error{first, second} {
		if err := publish(); err != nil {
			t.Fatal(err)
		}
	}
	a, b := h.settled("a:1")[0], h.settled("b:1")[0]
	for _, i := range []wire.Image{a, b} {
		id, _ := chunk.ParseID(i.Tree)
		h.await(id)
	}
	if n := h.holdings().inventory.Packs; n != 2 {
		t.Fatalf("%d packs, want two with the same chunks", n)
	}
	if done := h.collect(0); done.Packs != 1 {
		t.Errorf("the collection has done %+v, want one pack freed", done)
	}
	for _, i := range []wire.Image{a, b} {
		h.fetchTree(i.Chain)
	}
}
