package hub_test

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub"
	"lighter/hub/pullthrough"
	"lighter/hub/registries"
	"lighter/wire"
)

// host returns HOST:PORT of a registry.
func (r *fakeRegistry) host() string { return strings.TrimPrefix(r.server.URL, "http://") }

// requests returns the number of GET requests for an object.
func (r *fakeRegistry) requests(which string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[which]
}

// through makes a hub serve reads of registries.
func through(readers pullthrough.Readers, all ...*fakeRegistry) func(*hub.Config) {
	return func(c *hub.Config) {
		for _, r := range all {
			c.Registries = append(c.Registries, registries.Registry{Reached: reached(r.host()), PullThrough: true,
				Readers: string(readers), Repositories: []string{"some/**"}})
		}
	}
}

// at returns the path of an object of the registry's image as containerd requests it from a mirror.
func (r *fakeRegistry) at(kind, which string) string {
	return "/v2/some/image/" + kind + "/" + which + "?ns=" + r.host()
}

// ingested waits until the hub has an image that nobody has added.
func (h *testHub) ingested(name string) wire.Image {
	h.t.Helper()
	for range 600 {
		images, err := h.client.Images(h.t.Context(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		if len(images) > 0 && images[0].State != wire.StateQueued && images[0].State != wire.StateActive {
			return images[0]
		}
		time.Sleep(50 * time.Millisecond)
	}
	h.t.Fatalf("after 30 s, the hub has no image %s", name)
	return wire.Image{}
}

// A node pulls an image through the hub. Then the hub ingests the image, from what has just gone
// by.
func TestPullThrough(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar, upperTar))
	h := startHub(t, through(pullthrough.Anyone, r))
	manifest, config, _ := image(lowerTar, upperTar).build()
	for range 2 {
		status, b, header := h.do("GET", r.at("manifests", "1"), nil, "Accept", r.kind)
		if status != 200 || !bytes.Equal(b, r.manifest) || header.Get("Content-Type") != r.kind ||
			header.Get("Docker-Content-Digest") != digest.FromBytes(r.manifest).String() {
			t.Fatalf("manifest: %d, %d bytes, %v, want that of the registry", status, len(b), header)
		}
	}
	lower, lowerBytes := layerOf(lowerTar)
	upper, upperBytes := layerOf(upperTar)
	blobs := map[digest.Digest][]byte{lower: lowerBytes, upper: upperBytes, manifest.Config.Digest: config}
	for d, want := range blobs {
		if status, b, _ := h.do("GET", r.at("blobs", d.String()), nil); status != 200 || !bytes.Equal(b, want) {
			t.Errorf("blob %s: %d, %d bytes, want %d", d, status, len(b), len(want))
		}
	}
	status, b, header := h.do("GET", r.at("blobs", lower.String()), nil, "Range", "bytes=100-")
	if status != 206 || !bytes.Equal(b, lowerBytes[100:]) || header.Get("Content-Range") == "" {
		t.Errorf("a range: %d, %d bytes, want 206 and %d", status, len(b), len(lowerBytes)-100)
	}
	got := h.ingested(r.name())
	if got.State != wire.StateReady {
		t.Fatalf("the image is %+v, want it ready", got)
	}
	h.fetchTree(got.Chain)
	for _, d := range []digest.Digest{lower, upper, manifest.Config.Digest} {
		if n := r.requests(d.String()); n != 1 {
			t.Errorf("blob %s was requested %d times, want once for clients and the ingestion", d, n)
		}
	}
	// Podman and CRI-O put the host into the path.
	path := "/v2/" + strings.Replace(r.host(), ":", "_", 1) + "/some/image/manifests/1"
	if status, b, _ := h.do("GET", path, nil, "Accept", r.kind); status != 200 || !bytes.Equal(b, r.manifest) {
		t.Errorf("GET %s: %d, %d bytes, want the manifest", path, status, len(b))
	}
	if n := r.requests("1"); n != 1 {
		t.Errorf("the tag was requested %d times, want once: it is fresh", n)
	}
	for _, p := range []string{
		"/v2/some/image/manifests/1?ns=registry.example.org", "/v2/some/image/manifests/1?ns=169.254.169.254",
		"/v2/other/image/manifests/1?ns=" + r.host(), r.at("tags", "list"), r.at("referrers", lower.String()),
		r.at("manifests", "1") + "&ns=x", "/v2/some/image/blobs/sha256:12?ns=" + r.host(),
	} {
		want := http.StatusNotFound
		if strings.HasSuffix(p, "&ns=x") { // the first one counts
			want = http.StatusOK
		}
		if status, b, _ := h.do("GET", p, nil); status != want {
			t.Errorf("GET %s: %d %s, want %d", p, status, b, want)
		}
	}
	if status, _, _ := h.do("GET", r.at("manifests", "1"), nil, "Accept", "application/json"); status != 404 {
		t.Errorf("a client that does not accept the manifest's type: %d, want 404", status)
	}
}

// Two hundred clients that pull one new image at once cause one request for each blob.
func TestPullThroughOnceForManyClients(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar, upperTar))
	release := make(chan struct{})
	r.spoil = func(http.ResponseWriter, *http.Request, digest.Digest, []byte) bool {
		<-release // all clients ask, or are about to
		return false
	}
	h := startHub(t, through(pullthrough.Anyone, r))
	lower, lowerBytes := layerOf(lowerTar)
	const clients = 200
	failed := make(chan string, clients)
	var asking sync.WaitGroup // clients that have the manifest
	asking.Add(clients)
	for range clients {
		go func() {
			for _, at := range []string{r.at("manifests", "1"), r.at("blobs", lower.String())} {
				if strings.Contains(at, "blobs") {
					asking.Done()
				}
				res, err := http.Get(h.url + at)
				if err != nil {
					failed <- err.Error()
					return
				}
				var b bytes.Buffer
				_, err = b.ReadFrom(res.Body)
				res.Body.Close()
				if err != nil || strings.Contains(at, "blobs") && !bytes.Equal(b.Bytes(), lowerBytes) {
					failed <- at + ": " + res.Status
					return
				}
			}
			failed <- ""
		}()
	}
	asking.Wait()
	close(release)
	for range clients {
		if text := <-failed; text != "" {
			t.Error(text)
		}
	}
	if m, b := r.requests("1"), r.requests(lower.String()); m != 1 || b != 1 {
		t.Errorf("the registry got %d requests for the tag and %d for the blob, want 1 and 1", m, b)
	}
}
