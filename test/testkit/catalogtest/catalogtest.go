// Package catalogtest is the conformance suite for a hub's catalog. The catalog must pass it on
// every database.
package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/hub/catalog"
	"lighter/wire"
)

// Test runs the suite. open returns a new empty catalog, and closes it when the test ends.
func Test(t *testing.T, open func(t *testing.T) *catalog.Catalog) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, c *catalog.Catalog)
	}{
		{"JobOrder", testJobOrder},
		{"OneOpenJob", testOneOpenJob},
		{"MergedJobs", testMergedJobs},
		{"JobsUnderContention", testContention},
		{"Leases", testLeases},
		{"Attempts", testAttempts},
		{"JobRequests", testJobRequests},
		{"PausedJobs", testPausedJobs},
		{"Secrets", testSecrets},
		{"WithdrawnJobs", testWithdrawnJobs},
		{"NamesByJobs", testNamesByJobs},
		{"JobImages", testJobImages},
		{"Claims", testClaims},
		{"ObjectClaims", testObjectClaims},
		{"Interrupted", testInterrupted},
		{"ProgressOfChecks", testChecks},
		{"NamedObjects", testObjects},
		{"Backups", testHolds},
		{"Keys", testKeys},
		{"MovedChunks", testMoveChunks},
		{"MovedMeanwhile", testMovedMeanwhile},
		{"OtherTree", testOtherTree},
		{"NumbersAreNotReused", testNumbers},
		{"States", testStates},
		{"Events", testEvents},
		{"Deliveries", testDeliveries},
		{"Hints", testHints},
		{"Names", testNames},
		{"Sourced", testSourced},
		{"LastJobs", testLastJobs},
		{"RemovedImage", testRemovedImage},
		{"CommonLayers", testCommonLayers},
		{"Chains", testChains},
		{"ChainsAboveAreBounded", testChainsAbove},
		{"Chunks", testChunks},
		{"Manifests", testManifests},
		{"Upstreams", testUpstreams},
		{"RegistryBlobs", testRegistryBlobs},
		{"ManifestsOfRemovedImages", testManifestsOfRemovedImages},
		{"Sizes", testSizes},
		{"Locations", testLocations},
		{"RetiredPacks", testRetiredPacks},
		{"EvictedPacks", testEvictedPacks},
		{"LayoutJobs", testLayoutJobs},
		{"Unserved", testUnserved},
		{"Derived", testDerived},
		{"Holders", testHolders},
		{"HeldBounds", testHeldBounds},
		{"InventedHolders", testInventedHolders},
		{"ExpiryAfterAGap", testExpiryAfterAGap},
		{"HeldImage", testHeldImage},
		{"ReleasedTrees", testReleasedTrees},
		{"ForeseenTrees", testForeseenTrees},
		{"NameUses", testNameUses},
		{"DueJobs", testDueJobs},
		{"RetiredJobs", testRetiredJobs},
		{"Collection", testCollection},
		{"CollectedBesidePublications", testCollected},
		{"Rewriting", testRewriting},
		{"LostCollection", testLostCollection},
		{"Traces", testTraces},
		{"LongTraces", testLongTraces},
		{"Recordings", testRecordings},
		{"InheritedRecordings", testInherited},
		{"Wants", testWants},
		{"WantsUnderContention", testWantsUnderContention},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// Open opens the catalog of a source, as catalog.Open does, and closes it when the test ends.
func Open(t *testing.T, source string) *catalog.Catalog {
	t.Helper()
	return OpenAt(t, catalog.Place{Source: source})
}

// OpenAt is Open for a place.
func OpenAt(t *testing.T, p catalog.Place) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Open(t.Context(), p)
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Publish publishes an image with these layers, of one chunk each. The layer "b" on "a" has the
// chain "a/b" and the tree TreeOf("a/b").
func Publish(t *testing.T, c *catalog.Catalog, name string, layers ...string) catalog.Image {
	t.Helper()
	image, j := begin(t, c, name)
	p := publication(t, c, image, layers...)
	p.Lease = j.Lease()
	must(t, c.Publish(t.Context(), p))
	end(t, c, j, catalog.Outcome{State: wire.JobDone}, wire.JobDone)
	return image
}

// TreeOf returns the ID of the tree that Publish gives to a chain.
func TreeOf(chain string) chunk.ID { return chunk.Sum([]byte(chain)) }

// begin queues an image, claims its job, and makes the image active.
func begin(t *testing.T, c *catalog.Catalog, name string) (catalog.Image, catalog.Job) {
	t.Helper()
	images, err := c.Name(t.Context(), name, []catalog.Image{queued(name)}, jobOf(name))
	if err != nil {
		t.Fatal(err)
	}
	j := claim(t, c, "worker", name)
	must(t, c.Begin(t.Context(), j.Lease(), images[0].N))
	images[0].State = wire.StateActive
	return images[0], j
}

// jobOf returns the job that ingests the images of a name. Its priority is above the default.
func jobOf(name string) catalog.Job {
	return catalog.Job{Kind: kind, Key: name, Root: name, Priority: 1}
}

func queued(digest string) catalog.Image {
	return catalog.Image{Root: digest, Digest: digest, State: wire.StateQueued}
}

func publication(t *testing.T, c *catalog.Catalog, image catalog.Image, layers ...string) *catalog.Publication {
	t.Helper()
	name := image.Name
	p := &catalog.Publication{Image: image.N, Repository: "repository", Size: 7,
		Blobs: []catalog.Blob{{Digest: "config of " + name, Size: 7}}}
	parent := ""
	for _, layer := range layers {
		chain := layer
		if parent != "" {
			chain = parent + "/" + layer
		}
		p.Blobs = append(p.Blobs, catalog.Blob{Digest: "blob of " + layer, Size: 100, DiffID: layer, Chain: chain})
		if known, _, err := c.HasLayer(t.Context(), layer, ""); err != nil {
			t.Fatal(err)
		} else if !known {
			at := uint32(len(p.Chunks))
			p.Layers = append(p.Layers, catalog.Layer{DiffID: layer, Bytes: 10, Entries: 1, New: []uint32{at}})
			p.Chunks = append(p.Chunks, catalog.Chunk{ID: chunk.Sum([]byte(layer)), Length: 1000, Unit: at})
		}
		parent = chain
	}
	if len(p.Chunks) > 0 {
		p.Packs = []catalog.Pack{{ID: packOf(name), Size: 500, Units: make([]catalog.Unit, len(p.Chunks))}}
		for i := range p.Chunks {
			p.Packs[0].Units[i] = catalog.Unit{Plain: 1000, Stored: 400}
		}
	}
	p.Tree = catalog.Tree{ID: TreeOf(parent), Files: 1, Bytes: 1000,
		Locations: chunk.Sum([]byte("locations of " + parent))}
	p.Statement = index.Statement{Chain: parent, Tree: p.Tree.ID, Format: index.Format, Signature: make([]byte, 64)}
	return p
}

func packOf(image string) chunk.ID { return chunk.Sum([]byte("pack of " + image)) }

// states returns the names, digests and states of a name's images, or of all images if name is "".
func states(t *testing.T, c *catalog.Catalog, name string) string {
	t.Helper()
	images, err := c.Images(t.Context(), name)
	must(t, err)
	text := ""
	for _, i := range images {
		text += fmt.Sprintf("%s %s %s;", i.Name, i.Digest, i.State)
	}
	return text
}

// Sizes waits until the sizes of images include all changes, and returns them.
func Sizes(t *testing.T, c *catalog.Catalog, name string) map[string]catalog.Sizes {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		sizes, current, err := c.Sizes(t.Context(), name)
		if err != nil || time.Now().After(end) {
			t.Fatalf("sizes of %q: current: %v, %v", name, current, err)
		}
		if current {
			return sizes
		}
	}
}

// startSizes runs KeepSizes until the test ends.
func startSizes(t *testing.T, c *catalog.Catalog) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.KeepSizes(ctx, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// must fails the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// fill calls add until it fails with ErrFull, and returns how often it succeeded.
func fill(t *testing.T, add func() error) (n int) {
	t.Helper()
	for ; n < 10_000; n++ {
		if err := add(); errors.Is(err, catalog.ErrFull) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no bound after 10,000 traces")
	return n
}
