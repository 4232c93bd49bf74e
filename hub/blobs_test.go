package hub_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
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

// If a client finds a blob while a collection runs, between mark and sweep, the blob stays.
func TestPushesRelyOnWhatTheyFound(t *testing.T) {
	t.Parallel()
	manifest, config, parts := image(lowerTar).build()
	layer, bytes := digest.FromBytes(parts[0]), parts[0]
	for name, find := range map[string]struct {
		find func(h *testHub) int
		want int
	}{
		"HEAD": {func(h *testHub) int {
			status, _, _ := h.do("HEAD", "/v2/a/blobs/"+layer.String(), nil)
			return status
		}, 200},
		"mount": {func(h *testHub) int {
			status, _, _ := h.do("POST", "/v2/b/blobs/uploads/?mount="+layer.String()+"&from=a", nil)
			return status
		}, 201},
		"upload": {func(h *testHub) int {
			h.pushBlob("a", bytes)
			return 0
		}, 0},
		"nothing": {func(*testHub) int { return 404 }, 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			h.Registry().TouchInterval = 0
			repository := "a"
			if name == "mount" {
				repository = "b"
			}
			h.pushBlob("a", bytes)
			h.pushBlob("a", config)
			h.pushBlob("b", config)
			h.Blobs().Marked = func() {
				if got := find.find(h); got != find.want {
					t.Errorf("the client got %d, want %d", got, find.want)
				}
				h.do("HEAD", "/v2/"+repository+"/blobs/"+digest.FromBytes(config).String(), nil)
			}
			h.Blobs().Delay = 0
			time.Sleep(2 * time.Millisecond) // so that all blobs were touched before the run
			if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err != nil {
				t.Fatal(err)
			}
			if found := find.want < 300; h.stores(layer) != found {
				t.Errorf("the blob is stored: %t, want %t", h.stores(layer), found)
			} else if !found {
				return
			}
			h.Blobs().Marked = nil
			h.pushManifest(repository, "1", manifest.MediaType, manifest)
			h.ready(repository + ":1")
			h.collectBlobs()
			h.expectBlob(repository, layer, bytes)
		})
	}
}

// A manifest that is pushed between mark and sweep keeps its blobs, also if its client found them
// long before.
func TestManifestPushedDuringCollection(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	h.Registry().TouchInterval = 0
	manifest, config, parts := image(lowerTar, upperTar).build()
	for _, b := range append(parts, config) {
		h.pushBlob("a", b)
	}
	// The same for a manifest that has lost its tag and gets another tag.
	old := h.push("b:1", image(upperTar))
	h.ready("b:1")
	_, body, header := h.do("GET", "/v2/b/manifests/1", nil, "Accept", v1.MediaTypeImageManifest)
	h.do("DELETE", "/v2/b/manifests/1", nil)
	h.Blobs().Marked = func() {
		h.pushManifest("a", "1", manifest.MediaType, manifest)
		mediaType := header.Get("Content-Type")
		if status, _, _ := h.do("PUT", "/v2/b/manifests/2", body, "Content-Type", mediaType); status != 201 {
			t.Errorf("push manifest %s again: %d, want 201", old, status)
		}
	}
	h.Blobs().Delay = 0
	time.Sleep(2 * time.Millisecond)
	if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err != nil {
		t.Fatal(err)
	}
	h.Blobs().Marked = nil
	for _, name := range []string{"a:1", "b:2"} {
		h.ready(name)
		h.idle() // layouts use the scratch directory, too
		if problems := h.problems(name); problems != "" {
			t.Errorf("verify %s: %s", name, problems)
		}
	}
}

// The blobs of an image that has just lost its name stay: a client may have begun to pull it. That
// holds for images that are not ingested, too, and however the name was lost.
func TestPullOfARemovedImage(t *testing.T) {
	t.Parallel()
	for what, remove := range map[string]func(h *testHub){
		"removed":     func(h *testHub) { h.remove("a:1") },
		"tag moved":   func(h *testHub) { h.pushReady("a:1", image(upperTar)) },
		"tag deleted": func(h *testHub) { h.do("DELETE", "/v2/a/manifests/1", nil) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			arm := fakeImage{layers: image(armTar).layers, platform: *arm64}
			pulled := h.pushIndex("a:1",
				part{image: image(lowerTar), platform: amd64}, part{image: arm, platform: arm64})
			h.ready("a:1")
			h.idle()
			h.execute(`UPDATE registry_blobs SET touched = 1`) // it was pushed long ago
			remove(h)
			if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err != nil {
				t.Fatal(err)
			}
			for _, d := range pulled {
				if status, _, _ := h.do("GET", "/v2/a/manifests/"+d.String(), nil, "Accept",
					v1.MediaTypeImageIndex+", "+v1.MediaTypeImageManifest); status != http.StatusOK {
					t.Errorf("manifest %s: %d, want 200", d, status)
				}
			}
			for _, tar := range [][]byte{lowerTar, armTar} {
				d, want := layerOf(tar)
				h.expectBlob("a", d, want)
			}
			h.collectBlobs() // later
			if lower, _ := layerOf(lowerTar); h.stores(lower) || h.stores(pulled[0]) {
				t.Errorf("stored: layer %t, manifest %t, want neither", h.stores(lower), h.stores(pulled[0]))
			}
		})
	}
}

// Clients wait while a blob is being deleted, and then upload it.
func TestBlobIsPushedWhileItIsDeleted(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	layer := h.pushBlob("a", []byte("layer"))
	catalog := h.Catalog().Blobs
	now, err := catalog.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deletion, may, err := catalog.Begin(t.Context(), layer.String(), now.Add(time.Hour), time.Minute)
	if err != nil || !may {
		t.Fatalf("begin the deletion: %t, %v, want true", may, err)
	}
	answers := make(chan int, 2)
	for range 2 {
		go func() {
			req, _ := http.NewRequestWithContext(context.Background(), "HEAD", h.url+"/v2/a/blobs/"+layer.String(), nil)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				answers <- 0
				return
			}
			res.Body.Close()
			answers <- res.StatusCode
		}()
	}
	select {
	case status := <-answers:
		t.Errorf("answered %d for a blob that is being deleted, want the client to wait", status)
	case <-time.After(300 * time.Millisecond):
	}
	if err := h.Registry().Drop(t.Context(), layer.String()); err != nil {
		t.Fatal(err)
	}
	if err := catalog.End(t.Context(), deletion); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if status := <-answers; status != http.StatusNotFound {
			t.Errorf("after the deletion: %d, want 404", status)
		}
	}
	h.pushBlob("a", []byte("layer"))
	h.expectBlob("a", layer, []byte("layer"))
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

// If a manifest cannot be read, the collection fails and deletes nothing.
func TestUnreadableManifestStopsTheCollection(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	m := h.push("a:1", image(lowerTar))
	h.ready("a:1")
	h.pushBlob("a", []byte("loose"))
	write(t, h.blobFile(m), []byte("{"))
	h.Blobs().Delay = 0
	for range 2 {
		time.Sleep(2 * time.Millisecond)
		if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err == nil {
			t.Error("collected with a manifest that cannot be read")
		}
	}
	if lower, _ := layerOf(lowerTar); !h.stores(lower) {
		t.Error("the layer was deleted")
	}
	if _, err := os.Stat(h.blobFile(digest.FromString("loose"))); err != nil {
		t.Errorf("a blob that nothing names was deleted: %v", err)
	}
}

// collectOnce collects the registry's blobs once, without a delay.
func (h *testHub) collectOnce() (blobs.Result, error) {
	h.t.Helper()
	h.Blobs().Delay = 0
	time.Sleep(2 * time.Millisecond) // so that all blobs were touched at least a millisecond before the run
	return h.Blobs().Collect(h.t.Context(), &report.Progress{})
}

// If a manifest is lost, its image's blobs stay: lost chunks can be made again only from them.
func TestBlobsOfALostManifestStay(t *testing.T) {
	t.Parallel()
	for what, of := range map[string]string{
		"manifest": "a", "index": "index", "manifest of another platform": "index",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := startHub(t)
			lost := h.push("a:1", image(lowerTar))
			h.ready("a:1")
			arm := fakeImage{layers: image(armTar).layers, platform: *arm64} // it is not ingested
			first, second := h.push("index", image(upperTar)), h.push("index", arm)
			index := v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{
				{MediaType: v1.MediaTypeImageManifest, Digest: first, Size: 1, Platform: amd64},
				{MediaType: v1.MediaTypeImageManifest, Digest: second, Size: 1, Platform: arm64}}}
			index.SchemaVersion = 2
			root := h.pushManifest("index", "1", index.MediaType, index)
			h.ready("index:1")
			for i := range 3 { // so that most images are not lost
				h.pushReady(fmt.Sprintf("other:%d", i), image(lowerTar, upperTar))
			}
			loose := h.pushBlob("other", []byte("nothing names it"))
			switch what {
			case "index":
				lost = root
			case "manifest of another platform":
				lost = second
			}
			if err := os.Remove(h.blobFile(lost)); err != nil {
				t.Fatal(err)
			}
			before := h.registryFiles("/link")
			h.collectBlobs()
			manifest, _, _ := image(lowerTar).build()
			arms, _ := layerOf(armTar)
			for _, d := range []digest.Digest{manifest.Layers[0].Digest, manifest.Config.Digest, second, arms} {
				if d != lost && !h.stores(d) {
					t.Errorf("blob %s of an image whose manifest is lost was deleted", d)
				}
			}
			if h.stores(loose) {
				t.Error("a blob that nothing names stays")
			}
			left := h.registryFiles("/link")
			for _, link := range before {
				if strings.Contains(link, "repositories/"+of+"/") && !slices.Contains(left, link) {
					t.Errorf("link %s in the repository of the lost manifest was deleted", link)
				}
			}
			h.loseObjects()
			if check := h.fsck(wire.Fsck{Repair: true}); of != "a" && check.Left() != 0 {
				t.Errorf("not repaired: %s", findings(check))
			}
		})
	}
}

// If the registry's files are missing, the collection fails and deletes no blob.
func TestBlobsOfAnotherRegistryStay(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for i := range 3 {
		h.pushReady(fmt.Sprintf("a%d:1", i), image(lowerTar, upperTar))
	}
	loose := h.pushBlob("a0", []byte("nothing names it"))
	tags := filepath.Join(registryDir(h.config), "docker", "registry", "v2", "repositories")
	if err := os.Rename(tags, tags+".away"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if result, err := h.collectOnce(); err == nil || !strings.Contains(err.Error(), "manifests of 3 of 3 images") {
			t.Errorf("without the registry: %+v, %v, want an error", result, err)
		}
	}
	if err := os.Rename(tags+".away", tags); err != nil {
		t.Fatal(err)
	}
	if lower, _ := layerOf(lowerTar); !h.stores(lower) || !h.stores(loose) {
		t.Error("blobs were deleted")
	}
	h.collectBlobs()
	h.wantClean("with the registry", "a0:1", "a1:1", "a2:1")
}

// If another registry refuses access or fails, a collection sends it one request only, however many
// layers came from there. A collection asks other registries for a limited time. Its dry run sends
// no requests.
func TestOtherRegistriesAreAskedOnce(t *testing.T) {
	t.Parallel()
	for what, status := range map[string]int{
		"refuses": http.StatusUnauthorized, "fails": http.StatusServiceUnavailable,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := startRegistry(t, image(layer(1), layer(2), layer(3), layer(4)))
			h := startHub(t, func(c *hub.Config) { c.KeepBlobs = "always" })
			h.added(wire.Add{Source: r.source(), Name: "a:1"})
			h.config.KeepBlobs = "until-upstream"
			h = h.restart()
			var asked atomic.Int64
			var away atomic.Bool
			answers := r.server.Config.Handler
			r.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path != "/v2/" {
					asked.Add(1)
				}
				if away.Load() && (req.URL.Path != "/v2/" || status >= 500) {
					w.WriteHeader(status)
					return
				}
				answers.ServeHTTP(w, req)
			})
			collect := func(when string, released, requests int64) {
				t.Helper()
				asked.Store(0)
				result, err := h.collectOnce()
				if n := asked.Load(); err != nil || result.Released != released || n > requests {
					t.Errorf("%s: %+v, %v, after %d requests, want %d layers released and at most %d requests",
						when, result, err, n, released, requests)
				}
			}
			away.Store(true)
			for range 2 { // the first run only notes blobs that are new to it
				collect("while it "+what, 0, 1)
			}
			away.Store(false)
			h.Blobs().AskTime = 0
			collect("without time", 0, 0)
			h.Blobs().AskTime = time.Minute
			collect("when it answers again", 0, 4)
			asked.Store(0)
			time.Sleep(2 * time.Millisecond) // so that all blobs were touched before the plan
			plan, err := h.Blobs().Plan(t.Context())
			if n := asked.Load(); err != nil || plan.Released != 4 || n != 0 {
				t.Errorf("the dry run says %+v, %v, after %d requests, want 4 layers and no request", plan, err, n)
			}
			collect("in the end", 4, 4)
		})
	}
}
