package ingest

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"lighter/format/tree"
	"lighter/hub/catalog"
	"lighter/hub/encoder"
	"lighter/hub/objects"
	"lighter/hub/publish"
	"lighter/hub/registry"
)

// openService opens a service in a directory that may have been another's.
func openService(t *testing.T, dir string) *Service {
	t.Helper()
	scratch := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.Open(t.Context(), filepath.Join(dir, "catalog.db"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := objects.Open(t.Context(), "file://"+filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(), o.Close()) })
	log := slog.New(slog.DiscardHandler)
	r, err := registry.Open(t.Context(), filepath.Join(dir, "registry"), log)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Platforms: []string{"linux/amd64"}, Log: log, Keys: []ed25519.PrivateKey{make(ed25519.PrivateKey, ed25519.PrivateKeySize)},
		Limits: tree.Limits{Entries: 1000, Bytes: 1 << 20}}, c, o, r, publish.New(c, o, scratch, log), encoder.NewPool(1))
}

func leftIn(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// A pack that did not get to the disk keeps its image from being published.
func TestPackThatIsNotOnTheDiskIsNotPublished(t *testing.T) {
	dir := t.TempDir()
	s := openService(t, dir)
	staging, err := newStaging(s.publisher, s.catalog)
	if err != nil {
		t.Fatal(err)
	}
	if err := staging.addUnit([]byte("unit"), 4, nil); err != nil {
		t.Fatal(err)
	}
	written := staging.file
	if staging.file, err = os.OpenFile("/dev/null", os.O_WRONLY, 0); err != nil { // cannot be synced
		t.Fatal(err)
	}
	if err := errors.Join(staging.finish(), written.Close()); err != nil {
		t.Fatal(err)
	}
	taking := &taking{Service: s, staging: staging, image: &image{layers: []layer{{Chain: "c"}}}}
	if err := taking.publish(t.Context(), &madeTree{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("published with %v", err)
	}
	if err := staging.close(); err != nil {
		t.Error(err)
	}
	if left := leftIn(t, filepath.Join(dir, "scratch")); len(left) > 0 {
		t.Errorf("left in the scratch space: %v", left)
	}
}

// A source that trickles is no better than one that is silent.
func TestSourceThatTricklesIsGivenUp(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-9/10")
		if req.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusPartialContent)
		}
		for req.Context().Err() == nil {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/a:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	client := &counting{next: server.Client().Transport}
	b := &blobReader{source: &source{ref: ref, client: &http.Client{Transport: client}}, ctx: t.Context(), digest: "sha256:1", read: func(int) {},
		window: 10 * time.Millisecond, pause: time.Millisecond}
	defer b.Close()
	for err == nil {
		_, err = b.Read(make([]byte, 100))
	}
	if !errors.Is(err, errStalled) || client.requests != blobTries {
		t.Errorf("after %d requests: %v", client.requests, err)
	}
}

// counting counts requests as they are made: a server may not hear of one that is
// given up.
type counting struct {
	next     http.RoundTripper
	requests int
}

// RoundTrip makes a request.
func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.requests++
	return c.next.RoundTrip(req)
}
