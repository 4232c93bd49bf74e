package hub_test

import (
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// pushIndexOf pushes an index of other indexes and returns its digest.
func (h *testHub) pushIndexOf(repository, tag string, below ...digest.Digest) digest.Digest {
	h.t.Helper()
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, d := range below {
		index.Manifests = append(index.Manifests, v1.Descriptor{MediaType: v1.MediaTypeImageIndex, Digest: d,
			Size: 500})
	}
	return h.pushManifest(repository, tag, index.MediaType, index)
}

// A collection deletes a removed index with nested indexes, except those that another name needs.
func TestNestedIndexesAreRemoved(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	list := h.pushIndex("a:list", part{image: image(lowerTar), platform: amd64})
	inner := list[len(list)-1]
	middle := h.pushIndexOf("a", "middle", inner)
	top := h.pushIndexOf("a", "top", middle)
	expect := func(d digest.Digest, want int) {
		t.Helper()
		if status, _, _ := h.do("GET", "/v2/a/manifests/"+d.String(), nil, "Accept",
			v1.MediaTypeImageIndex); status != want {
			t.Errorf("%s: %d, want %d", d, status, want)
		}
	}
	h.ready("a:top")
	h.ready("a:middle")
	remove := func(name string) {
		t.Helper()
		if err := h.client.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		h.collectBlobs()
	}
	remove("a:list")
	remove("a:middle")
	expect(inner, 200)
	expect(middle, 200)
	remove("a:top")
	for _, d := range []digest.Digest{top, middle, inner} {
		expect(d, 404)
	}
}
