package hub_test

import (
	"fmt"
	"net/http"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// expect checks the status of a GET request.
func (h *testHub) expect(path string, want int) {
	h.t.Helper()
	if status, body, _ := h.do("GET", path, nil, "Accept", v1.MediaTypeImageManifest); status != want {
		h.t.Errorf("%s: %d %s, want %d", path, status, body, want)
	}
}

func TestRemovedImage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	both := h.push("a:1", image(lowerTar, upperTar))
	h.push("a:2", image(lowerTar, upperTar))
	lower := h.push("a:lower", image(lowerTar))
	h.ready("a:2")
	low := h.ready("a:lower")
	top := h.ready("a:1")

	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.expect("/v2/a/manifests/1", 404)
	h.expect("/v2/a/manifests/2", 200)
	h.expect("/v2/a/manifests/"+both.String(), 200) // a:2 has the same manifest
	h.expect("/lighter/1/default/chains/"+top.Chain, 200)

	if err := h.client.Remove(t.Context(), "a:2"); err != nil {
		t.Fatal(err)
	}
	h.expect("/v2/a/manifests/2", 404)
	h.expect("/v2/a/manifests/"+both.String(), 200) // a client may be pulling it, or pushing an index of it
	h.expect("/v2/a/manifests/"+lower.String(), 200)
	h.expect("/lighter/1/default/chains/"+top.Chain, 404)
	h.expect("/lighter/1/default/trees/"+top.Chain, 404)
	h.expect("/lighter/1/default/chains/"+low.Chain, 200)
	chain, err := h.client.Chain(t.Context(), low.Chain)
	if err != nil || len(chain.Above) != 0 {
		t.Errorf("chains above the lower layer: %+v, %v, want none", chain, err)
	}
	h.collectBlobs()
	h.expect("/v2/a/manifests/"+both.String(), 404)
	h.expect("/v2/a/manifests/"+lower.String(), 200)
}

func TestRemovedImageIsAddedAgain(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	digest := h.push("a:1", image(lowerTar, upperTar))
	top := h.ready("a:1")
	before := h.holdings()
	if err := h.client.Remove(t.Context(), "a:1"); err != nil {
		t.Fatal(err)
	}
	h.push("a:1", image(lowerTar, upperTar))
	if got := h.ready("a:1"); got.Tree != top.Tree || fmt.Sprint(h.holdings()) != fmt.Sprint(before) {
		t.Errorf("added again as %+v, want tree %s; the hub has %v, want %v", got, top.Tree, h.holdings(), before)
	}
	// Deleting the manifest in the registry removes the image from the hub.
	if status, body, _ := h.do("DELETE", "/v2/a/manifests/"+digest.String(), nil); status != http.StatusAccepted {
		t.Fatalf("delete: %d %s, want 202", status, body)
	}
	if images := h.settled("a:1"); len(images) != 0 {
		t.Errorf("images after the deletion: %+v, want none", images)
	}
}

func TestMovedTagRemovesPreviousImage(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	old := h.pushReady("a:1", image(upperTar))
	now := h.pushReady("a:1", image(lowerTar))
	if images := h.settled("a:1"); len(images) != 1 || images[0].Digest != now.Digest {
		t.Errorf("the name refers to %+v, want %s", images, now.Digest)
	}
	if _, err := h.client.Chain(t.Context(), old.Chain); err == nil {
		t.Error("the previous image's chain is still known")
	}
}
