package hub_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub"
	"lighter/hub/blobs"
	"lighter/hub/report"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// collectBlobs collects the registry's blobs twice, without a delay: the first run only notes blobs
// that are new to it.
func (h *testHub) collectBlobs() (all blobs.Result) {
	h.t.Helper()
	h.Blobs().Delay = 0
	for range 2 {
		time.Sleep(2 * time.Millisecond) // so that all blobs were touched at least a millisecond before the run
		plan, err := h.Blobs().Plan(h.t.Context())
		if err != nil {
			h.t.Fatal(err)
		}
		result, err := h.Blobs().Collect(h.t.Context(), &report.Progress{})
		if err != nil {
			h.t.Fatal(err)
		}
		// Plan asks no other registries: it counts layers that Collect may not release.
		same := plan
		same.Released, same.Bytes = result.Released, result.Bytes
		if result != same || result.Released > plan.Released || result.Bytes > plan.Bytes {
			h.t.Errorf("the collection has done %+v, want at most what the dry run says, %+v", result, plan)
		}
		all.Links += result.Links
		all.Blobs += result.Blobs
		all.Released += result.Released
		all.Bytes += result.Bytes
	}
	return all
}

// Blobs and manifests that no image and no tag names are deleted from the registry, with all their
// links. All others stay.
func TestUnnamedBlobsAreCollected(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	keep := image(lowerTar)
	h.push("a:1", keep)
	h.push("a:2", image(lowerTar, upperTar))
	h.push("b/c:1", image(upperTar))
	h.pushBlob("b/c", []byte("nothing names it"))
	loose := h.push("a", image(tarball.Of(tarball.File("x", noise(9, 3000))))) // by its digest only
	lower, lowerBytes := layerOf(lowerTar)
	upper, _ := layerOf(upperTar)
	for _, name := range []string{"a:1", "a:2", "b/c:1"} {
		h.ready(name)
	}
	before := files(t, registryDir(h.config))
	if result, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err != nil || result != (blobs.Result{}) {
		t.Errorf("collected %+v within a day, %v, want nothing", result, err)
	}
	if now := files(t, registryDir(h.config)); len(now) != len(before) {
		t.Errorf("%d files of the registry are left, want %d", len(now), len(before))
	}
	h.collectBlobs()
	if h.stores(digest.FromString("nothing names it")) || h.stores(loose) || !h.stores(lower) || !h.stores(upper) {
		t.Errorf("stored: loose blob %t, loose manifest %t, layers %t and %t; want the layers only",
			h.stores(digest.FromString("nothing names it")), h.stores(loose), h.stores(lower), h.stores(upper))
	}
	for _, name := range []string{"a:2", "b/c:1"} {
		if err := h.client.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	h.collectBlobs()
	if h.stores(upper) || !h.stores(lower) {
		t.Errorf("stored: upper layer %t, lower layer %t, want the lower one", h.stores(upper), h.stores(lower))
	}
	for _, left := range []string{upper.Encoded(), loose.Encoded(), "b/c/_layers/", "b/c/_manifests/revisions/"} {
		if found := h.registryFiles(left); len(found) > 0 {
			t.Errorf("the registry has %q, want no file with %s", found, left)
		}
	}
	h.expectBlob("a", lower, lowerBytes)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	// The deleted image can be pushed again.
	h.pushReady("a:2", image(lowerTar, upperTar))
	h.collectBlobs()
	if problems := h.problems("a:2"); problems != "" {
		t.Errorf("verify after a second push: %s", problems)
	}
}

// All members of an index stay as long as its name, also images that are not ingested.
func TestMembersOfAnIndexAreKept(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	amd, arm := image(lowerTar), fakeImage{layers: image(armTar).layers, platform: *arm64}
	first, second := h.push("a", amd), h.push("a", arm)
	index := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{
		{MediaType: v1.MediaTypeImageManifest, Digest: first, Size: 1, Platform: amd64},
		{MediaType: v1.MediaTypeImageManifest, Digest: second, Size: 1, Platform: arm64}}}
	index.SchemaVersion = 2
	root := h.pushManifest("a", "1", index.MediaType, index)
	h.ready("a:1")
	h.collectBlobs()
	for _, tar := range [][]byte{lowerTar, armTar} {
		d, want := layerOf(tar)
		h.expectBlob("a", d, want)
	}
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.collectBlobs()
	if left := h.registryFiles("blobs/sha256"); len(left) > 0 {
		t.Errorf("after the removal of index %s, the registry has %q, want nothing", root, left)
	}
}

// With keep_blobs = until-upstream, the collection deletes (releases) stored layers of added images
// that their registry still has.
func TestLayersAreReleased(t *testing.T) {
	t.Parallel()
	lower, lowerBytes := layerOf(lowerTar)
	upper, upperBytes := layerOf(upperTar)
	r := startRegistry(t, image(lowerTar, upperTar))
	h := startHub(t, func(c *hub.Config) { c.KeepBlobs = "always" })
	h.added(wire.Add{Source: r.source(), Name: "a:1"})
	h.pushReady("b:1", image(upperTar))
	if result := h.collectBlobs(); result != (blobs.Result{}) || !h.stores(lower) {
		t.Errorf("with keep_blobs = always, collected %+v, want nothing; layer stored: %t", result, h.stores(lower))
	}
	h.config.KeepBlobs = "until-upstream"
	h = h.restart()
	gone := r.blobs[lower]
	delete(r.blobs, lower)
	h.collectBlobs()
	if !h.stores(lower) {
		t.Error("a layer that no other registry has was released")
	}
	r.blobs[lower] = gone
	if result := h.collectBlobs(); result.Released != 1 || h.stores(lower) || !h.stores(upper) {
		t.Errorf("collected %+v; stored: lower layer %t, upper layer %t, want only the pushed, upper one",
			result, h.stores(lower), h.stores(upper))
	}
	h.expectBlob("a", lower, lowerBytes)
	h.expectBlob("b", upper, upperBytes)
	if err := h.client.Remove(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	h.collectBlobs()
	if h.stores(upper) {
		t.Error("after the pushed image was removed, its layer, which the other registry has, is stored")
	}
	h.expectBlob("a", upper, upperBytes)
	// When the image is removed, its layers and their sources are forgotten.
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.collectBlobs()
	if status, _, _, _ := h.getBlob("a", lower); status != 404 {
		t.Errorf("a layer of a removed image: %d, want 404", status)
	}
	if left, err := h.Catalog().Blobs.AllUpstreams(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("sources left in the catalog: %+v, %v, want none", left, err)
	}
}

// With keep_blobs = never, the hub serves layers of a pushed image until the image is ingested.
// Afterwards it answers 404 with the reason.
func TestKeepNever(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.KeepBlobs = "never" })
	got := h.pushReady("a:1", image(lowerTar, upperTar))
	h.push("bad:1", image(tarball.Of(tarball.Link("a", "b")))) // fails
	h.settled("bad:1")
	h.collectBlobs()
	lower, lowerBytes := layerOf(lowerTar)
	if h.stores(lower) {
		t.Error("a layer of a ready image is stored")
	}
	status, _, body, _ := h.getBlob("a", lower)
	if status != 404 || !strings.Contains(string(body), "keep_blobs") {
		t.Errorf("%d %s, want 404 and why", status, body)
	}
	bad, badBytes := layerOf(tarball.Of(tarball.Link("a", "b")))
	h.expectBlob("bad", bad, badBytes)
	h.fetchTree(got.Chain)
	if problems := h.problems("a:1"); problems != "" {
		t.Errorf("verify: %s", problems)
	}
	// The image can be pushed again.
	h.pushReady("a:2", image(lowerTar, upperTar))
	h.expectBlob("a", lower, lowerBytes)
}

// Uploads that began more than a day ago are deleted. Younger ones stay.
func TestUnfinishedUploadsEnd(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for range 2 {
		if status, _, _ := h.do("POST", "/v2/a/blobs/uploads/", nil); status != http.StatusAccepted {
			t.Fatalf("begin an upload: %d, want 202", status)
		}
	}
	begun := h.registryFiles("startedat")
	if len(begun) != 2 {
		t.Fatalf("%d uploads have begun, want 2", len(begun))
	}
	old := time.Now().Add(-25 * time.Hour).UTC().Format(time.RFC3339)
	file := filepath.Join(registryDir(h.config), begun[0])
	if err := os.Remove(file); err != nil { // with the checksum that an S3 server keeps beside it
		t.Fatal(err)
	}
	write(t, file, []byte(old))
	h.collectBlobs()
	left := h.registryFiles("startedat")
	if len(left) != 1 || left[0] != begun[1] {
		t.Errorf("uploads %q are left of %q, want the second", left, begun)
	}
}

// collectOnce collects the registry's blobs once, without a delay.
func (h *testHub) collectOnce() (blobs.Result, error) {
	h.t.Helper()
	h.Blobs().Delay = 0
	time.Sleep(2 * time.Millisecond) // so that all blobs were touched at least a millisecond before the run
	return h.Blobs().Collect(h.t.Context(), &report.Progress{})
}
