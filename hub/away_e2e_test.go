//go:build e2e

package hub_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/s3"
)

// While the bucket is away, clients of the hub's registry get 503 with Retry-After, and never that
// an image does not exist.
func TestRegistryWithoutTheBucket(t *testing.T) {
	t.Parallel()
	const (
		here int32 = iota
		overloaded
		cut
	)
	var state atomic.Int32
	c := hubConfig(t)
	through, proxy, err := s3.Proxy(c.Bucket, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		switch state.Load() {
		case overloaded:
			w.WriteHeader(http.StatusServiceUnavailable)
		case cut:
			panic(http.ErrAbortHandler)
		default:
			forward(w, req)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	c.Bucket = through
	h := runHub(t, openHub(t, c))
	pushed := h.push("a:1", image(lowerTar))
	h.ready("a:1")
	h.idle()
	lower, _ := layerOf(lowerTar)
	paths := []string{"/v2/a/manifests/1", "/v2/a/manifests/" + pushed.String(), "/v2/a/blobs/" + lower.String()}
	for _, now := range []int32{overloaded, cut, here} {
		state.Store(now)
		for _, path := range paths {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				status, _, header := h.do(method, path, nil, "Accept", v1.MediaTypeImageManifest)
				switch {
				case now == here && status != http.StatusOK:
					t.Errorf("%s %s: %d, want 200", method, path, status)
				case now != here && (status != http.StatusServiceUnavailable || header.Get("Retry-After") == ""):
					t.Errorf("%s %s without the bucket (%d): %d %v, want 503 with Retry-After", method, path, now,
						status, header)
				}
			}
		}
	}
	if status, _, _ := h.do(http.MethodGet, "/v2/", nil); status != http.StatusOK {
		t.Errorf("GET /v2/: %d, want 200", status)
	}
}
