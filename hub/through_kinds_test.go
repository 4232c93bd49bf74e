package hub_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/hub"
	"lighter/hub/pullthrough"
	"lighter/wire"
)

// With readers = "hub", everybody reads what the hub's own login reads, in the listed repositories
// only. A client's login goes nowhere, and the image is ingested.
func TestPullThroughWithTheHubsLogin(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	r.user, r.password = "hub", unlogged
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(unlogged+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHub(t, through(pullthrough.Hub, r), func(c *hub.Config) {
		table := &c.Registries[len(c.Registries)-1]
		table.Username, table.PasswordFile = "hub", file
	})
	layer, want := layerOf(lowerTar)
	if status, _, _ := h.do("GET", "/v2/other/image/manifests/1?ns="+r.host(), nil); status != http.StatusNotFound {
		t.Errorf("a repository that is not listed: %d, want 404", status)
	}
	status, b, _ := h.do("GET", r.at("manifests", "1"), nil, "Authorization", basic("user", "wrong"))
	if status != 200 || !bytes.Equal(b, r.manifest) {
		t.Errorf("manifest: %d %s, want it", status, b)
	}
	if status, b, _ := h.do("GET", r.at("blobs", layer.String()), nil); status != 200 || !bytes.Equal(b, want) {
		t.Errorf("layer: %d, %d bytes, want %d", status, len(b), len(want))
	}
	got := h.ingested(r.name())
	if got.State != wire.StateReady {
		t.Fatalf("the image is %+v, want it ready", got)
	}
	h.fetchTree(got.Chain)
}

// Of an index, only the platform that a client pulls is ingested. The next client, of another
// platform, makes the hub ingest that one, too. Both belong to the tag.
func TestPullThroughOfAnIndex(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	digests := r.serveIndex(t, part{image: image(lowerTar), platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
		part{image: image(upperTar), platform: &v1.Platform{OS: "linux", Architecture: "arm64"}})
	h := startHub(t, through(pullthrough.Anyone, r))
	for i, tar := range [][]byte{lowerTar, upperTar} {
		layer, want := layerOf(tar)
		if status, b, _ := h.do("GET", r.at("manifests", "1"), nil); status != 200 || !bytes.Equal(b, r.manifest) {
			t.Fatalf("index: %d, %d bytes, want it", status, len(b))
		}
		manifest := r.parts[digests[i].String()].bytes
		status, b, _ := h.do("GET", r.at("manifests", digests[i].String()), nil)
		if status != 200 || !bytes.Equal(b, manifest) {
			t.Fatalf("manifest %d: %d, %d bytes, want it", i, status, len(b))
		}
		if status, b, _ := h.do("GET", r.at("blobs", layer.String()), nil); status != 200 || !bytes.Equal(b, want) {
			t.Errorf("layer %d: %d, %d bytes, want %d", i, status, len(b), len(want))
		}
		h.eventually("the pulled platform is not ready", func() bool {
			return h.isReady(r.name(), digests[i].String())
		})
		images, err := h.client.Images(t.Context(), r.name())
		if err != nil || len(images) != i+1 {
			t.Errorf("after %d pulls: images %+v, %v; want those of the pulled platforms", i+1, images, err)
		}
	}
}

// A registry that stalls keeps only the readers of what stalls: a known tag is answered with its
// last manifest, and other blobs are passed. A range of what stalls is sent as far as it has come.
// What has stalled goes on when the registry does.
func TestPullThroughWithAStalledRegistry(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar, upperTar))
	stalled, goOn := make(chan struct{}), make(chan struct{})
	lower, lowerBytes := layerOf(lowerTar)
	upper, upperBytes := layerOf(upperTar)
	r.spoil = func(w http.ResponseWriter, req *http.Request, d digest.Digest, b []byte) bool {
		if d != lower || req.Method == http.MethodHead {
			return false
		}
		_, _ = w.Write(b[:len(b)/2])
		_ = http.NewResponseController(w).Flush()
		close(stalled)
		<-goOn
		_, _ = w.Write(b[len(b)/2:])
		return true
	}
	var stallsTags atomic.Bool
	r.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if stallsTags.Load() && filepath.Base(req.URL.Path) == "1" {
			<-goOn
		}
		r.ServeHTTP(w, req)
	})
	h := startHub(t, through(pullthrough.Anyone, r), func(c *hub.Config) {
		c.Registries[len(c.Registries)-1].TagSeconds = 1
	})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release) // before hub and registry end
	h.do("GET", r.at("manifests", "1"), nil)
	got := make(chan []byte, 1)
	go func() {
		res, err := http.Get(h.url + r.at("blobs", lower.String()))
		if err != nil {
			t.Error(err)
			got <- nil
			return
		}
		defer res.Body.Close()
		var b bytes.Buffer
		_, _ = b.ReadFrom(res.Body)
		got <- b.Bytes()
	}()
	<-stalled
	const from = 100 // of the range
	req, err := http.NewRequestWithContext(t.Context(), "GET", h.url+r.at("blobs", lower.String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	part, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Body.Close()
	begin := make([]byte, 1000)
	if _, err := io.ReadFull(part.Body, begin); err != nil || part.StatusCode != http.StatusPartialContent ||
		!bytes.Equal(begin, lowerBytes[from:from+len(begin)]) {
		t.Errorf("a range of a blob that grows: %s, %v, want its first bytes", part.Status, err)
	}
	if status, b, _ := h.do("GET", r.at("blobs", upper.String()), nil); status != 200 || !bytes.Equal(b, upperBytes) {
		t.Errorf("another blob meanwhile: %d, %d bytes, want %d", status, len(b), len(upperBytes))
	}
	stallsTags.Store(true)
	h.eventually("a stalled tag was not answered with a warning", func() bool {
		status, b, header := h.do("GET", r.at("manifests", "1"), nil)
		if status != 200 || !bytes.Equal(b, r.manifest) {
			t.Fatalf("a stalled tag: %d, %d bytes, want its last manifest", status, len(b))
		}
		return header.Get("Warning") != ""
	})
	release()
	if b := <-got; !bytes.Equal(b, lowerBytes) {
		t.Errorf("the stalled blob: %d bytes, want %d", len(b), len(lowerBytes))
	}
	if rest, err := io.ReadAll(part.Body); err != nil || !bytes.Equal(rest, lowerBytes[from+len(begin):]) {
		t.Errorf("the rest of the range: %d bytes, %v, want %d", len(rest), err, len(lowerBytes)-from-len(begin))
	}
}

// A registry that asks for an hour of rest gets it: clients are answered 404 at once, so that they
// go on to the registry with logins of their own.
func TestPullThroughWhileTheRegistryRests(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	var asked atomic.Int64
	r.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/v2/" { // it says so only of images
			return
		}
		asked.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	h := startHub(t, through(pullthrough.Anyone, r))
	layer, _ := layerOf(lowerTar)
	for range 50 {
		for _, path := range []string{r.at("manifests", "1"), r.at("manifests", "2"), r.at("blobs", layer.String())} {
			if status, b, header := h.do("GET", path, nil); status != 404 || header.Get("Retry-After") != "" {
				t.Fatalf("GET %s: %d %s %v, want 404 without Retry-After", path, status, b, header)
			}
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the registry got %d requests, want 1", n)
	}
}
