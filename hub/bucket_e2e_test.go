//go:build e2e

package hub_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/hub"
	"lighter/hub/report"
	"lighter/test/testkit/s3"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// countRequests returns the configuration of a hub whose requests to its bucket are counted. counts
// returns the numbers of list requests and of other requests since its last call.
func countRequests(t *testing.T, c hub.Config) (through hub.Config, counts func() (lists, others int64)) {
	t.Helper()
	var lists, others atomic.Int64
	through = refuseRequests(t, c, func(req *http.Request) bool {
		if req.URL.Query().Has("list-type") {
			lists.Add(1)
		} else {
			others.Add(1)
		}
		return false
	})
	return through, func() (int64, int64) { return lists.Swap(0), others.Swap(0) }
}

// A collection that finds nothing lists files on S3, 1,000 at a time, and reads tags and manifests.
// It sends no request for each file.
func TestCollectionTakesFewRequests(t *testing.T) {
	t.Parallel()
	const images = 40
	const mostLists, mostOthers = 4, 2*images + 10
	c, counts := countRequests(t, hubConfig(t))
	h := runHub(t, openHub(t, c))
	for n := range images {
		h.push(fmt.Sprintf("a:%d", n), image(tarball.Of(tarball.File("f", noise(uint64(n), 100)))))
	}
	for n := range images {
		h.ready(fmt.Sprintf("a:%d", n))
	}
	h.idle()
	counts()
	if _, err := h.Blobs().Collect(t.Context(), &report.Progress{}); err != nil {
		t.Fatal(err)
	}
	if lists, others := counts(); lists > mostLists || others > mostOthers {
		t.Errorf("%d list requests and %d other requests for %d images, want %d and %d at most", lists, others, images,
			mostLists, mostOthers)
	}
}

// Each repository is on exactly one page, also if the order of names differs from the order of
// their files.
func TestPagesOfRepositories(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	want := []string{"a", "a-b", "a.b", "a/b", "a/b-c", "a0"}
	for _, repository := range want {
		h.push(repository+":1", image(lowerTar))
	}
	for _, size := range []int{1, 2, 5, 100} {
		var got []string
		for last, more := "", true; more && len(got) <= len(want); {
			_, body, header := h.do(http.MethodGet, fmt.Sprintf("/v2/_catalog?n=%d&last=%s", size, last), nil)
			var page struct{ Repositories []string }
			if err := json.Unmarshal(body, &page); err != nil {
				t.Fatal(err)
			}
			got = append(got, page.Repositories...)
			if more = header.Get("Link") != "" && len(page.Repositories) > 0; more {
				last = page.Repositories[len(page.Repositories)-1]
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("pages of %d: %q, want %q", size, got, want)
		}
	}
}

// retryable is a transport of a client. It notes answers with a 5xx status that do not ask the
// client to try again later.
type retryable struct {
	mu  sync.Mutex
	bad []string // METHOD PATH: STATUS
}

func (r *retryable) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err == nil && res.StatusCode >= 500 &&
		(res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "") {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bad = append(r.bad, req.Method+" "+req.URL.Path+": "+res.Status)
	}
	return res, err
}

// For each kind of fault, S3 fails every fifth request. A push then succeeds, or gets 503 with
// Retry-After and succeeds when it is tried again. In the end the hub has the same as without
// faults.
func TestPushToAFaultyBucket(t *testing.T) {
	const faultEvery = 5 // requests
	var layers []ggcr.Layer
	for _, b := range [][]byte{lowerTar, upperTar, tarball.Of(tarball.File("large", noise(1, 18<<20)))} {
		layers = append(layers, static.NewLayer(b, types.OCIUncompressedLayer))
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layers...)
	if err == nil {
		image, err = mutate.ConfigFile(image, &ggcr.ConfigFile{OS: "linux", Architecture: "amd64",
			RootFS: diffIDs(t, image)})
	}
	if err != nil {
		t.Fatal(err)
	}
	push := func(t *testing.T, h *testHub, transport http.RoundTripper) error {
		ref, err := name.ParseReference(strings.TrimPrefix(h.url, "http://")+"/a:1", name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return remote.Write(ref, image, remote.WithContext(t.Context()), remote.WithTransport(transport))
	}
	undisturbed := runHub(t, openHub(t, hubConfig(t)))
	if err := push(t, undisturbed, http.DefaultTransport); err != nil {
		t.Fatal(err)
	}
	undisturbed.ready("a:1")
	undisturbed.idle()
	for fault := range s3.Faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			c := hubConfig(t)
			var faulty atomic.Bool
			fault := s3.Every(faultEvery, s3.Faults[fault])
			through, proxy, err := s3.Proxy(c.Bucket, func(w http.ResponseWriter, req *http.Request,
				forward http.HandlerFunc) {
				if faulty.Load() {
					fault(w, req, forward)
				} else {
					forward(w, req)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			c.Bucket = through + "&stall_timeout=1s"
			h := runHub(t, openHub(t, c))
			faulty.Store(true)
			var client retryable
			tries, end := 1, time.Now().Add(5*time.Minute)
			for err = push(t, h, &client); err != nil && time.Now().Before(end); err = push(t, h, &client) {
				tries++
			}
			if err != nil || len(client.bad) > 0 {
				t.Fatalf("after %d tries: %v, with the answers %v, want none but 503", tries, err, client.bad)
			}
			for { // a request fails while the bucket does; the image does not
				_, err := h.add(wire.Add{Name: "a:1"})
				images, listErr := h.client.Images(t.Context(), "a:1")
				failed := func(i wire.Image) bool { return i.State == wire.StateFailed }
				if listErr != nil || slices.ContainsFunc(images, failed) {
					t.Fatalf("the images are %+v, %v, want none that has failed", images, listErr)
				}
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			faulty.Store(false)
			h.ready("a:1")
			h.idle()
			t.Logf("%d tries", tries)
			wantSame(t, h, undisturbed)
		})
	}
}

// diffIDs returns the diffIDs of an image as its config has them.
func diffIDs(t *testing.T, image ggcr.Image) ggcr.RootFS {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.RootFS
}
