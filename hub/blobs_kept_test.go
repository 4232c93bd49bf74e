package hub_test

import (
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
	"lighter/hub/report"
	"lighter/wire"
)

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
