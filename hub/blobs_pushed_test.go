package hub_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub/report"
)

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
