// Package registrytest serves an OCI registry from memory, for tests that need no faults and no
// login: the one of go-containerregistry.
package registrytest

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is a registry that runs.
type Registry struct {
	Host string // HOST:PORT, without TLS

	next http.Handler

	mu    sync.Mutex // guards the following
	asked []string   // METHOD PATH
	spoil func(w http.ResponseWriter, req *http.Request) bool
}

// Start serves a registry until the test ends. referrers says whether it has the referrers API.
func Start(tb testing.TB, referrers bool) *Registry {
	tb.Helper()
	r := &Registry{next: registry.New(registry.WithReferrersSupport(referrers),
		registry.Logger(log.New(io.Discard, "", 0)))}
	server := httptest.NewServer(r)
	tb.Cleanup(server.Close)
	r.Host = strings.TrimPrefix(server.URL, "http://")
	return r
}

func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.asked = append(r.asked, req.Method+" "+req.URL.Path)
	spoil := r.spoil
	r.mu.Unlock()
	if spoil == nil || !spoil(w, req) {
		r.next.ServeHTTP(w, req)
	}
}

// Spoil sets a function that may answer a request instead of the registry, and reports whether it
// has. nil removes it.
func (r *Registry) Spoil(spoil func(w http.ResponseWriter, req *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoil = spoil
}

// Asked returns the requests (METHOD PATH) since the last call whose text has a part.
func (r *Registry) Asked(part string) (some []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.asked {
		if strings.Contains(one, part) {
			some = append(some, one)
		}
	}
	r.asked = nil
	return some
}

// Push pushes the image of an OCI layout, REPO:TAG, and returns its reference and the descriptor of
// its manifest.
func (r *Registry) Push(tb testing.TB, dir, repoTag string) (ref string, d ocispec.Descriptor) {
	tb.Helper()
	ref = r.Host + "/" + repoTag
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		tb.Fatal(err)
	}
	manifests, err := index.IndexManifest()
	if err != nil {
		tb.Fatal(err)
	}
	first := manifests.Manifests[0]
	image, err := index.Image(first.Digest)
	if err != nil {
		tb.Fatal(err)
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		err = remote.Write(to, image)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return ref, ocispec.Descriptor{MediaType: string(first.MediaType), Size: first.Size,
		Digest: digest.Digest(first.Digest.String())}
}
