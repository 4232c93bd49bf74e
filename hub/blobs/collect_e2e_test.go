//go:build e2e

package blobs

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/registry"
	"lighter/hub/report"
	"lighter/test/testkit/s3"
)

// A run deletes unneeded blobs, and the links to them, with a few requests to S3 for many of them.
func TestFewRequestsDeleteManyBlobs(t *testing.T) {
	const unneeded = 120
	var requests atomic.Int64
	c := unneededOnS3(t, unneeded, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		requests.Add(1)
		forward(w, req)
	})
	result, err := c.Collect(t.Context(), &report.Progress{})
	if want := (Result{Links: 2 * unneeded, Blobs: unneeded, Bytes: 3 * unneeded}); err != nil || result != want {
		t.Errorf("collected %+v, %v, want %+v", result, err, want)
	}
	if n := requests.Load(); n > unneeded/2 {
		t.Errorf("%d requests to S3 for %d blobs and twice as many links, want %d at most", n, unneeded, unneeded/2)
	}
	if result, err := c.Collect(t.Context(), &report.Progress{}); err != nil || result != (Result{}) {
		t.Errorf("collected %+v, %v after that, want nothing", result, err)
	}
}

// BenchmarkDelete collects unneeded blobs, with two links to each, from an S3 server that answers
// each request 20 ms late.
func BenchmarkDelete(b *testing.B) {
	const unneeded = 100
	for b.Loop() {
		b.StopTimer()
		c := unneededOnS3(b, unneeded, func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
			time.Sleep(20 * time.Millisecond)
			forward(w, req)
		})
		b.StartTimer()
		if result, err := c.Collect(b.Context(), &report.Progress{}); err != nil || result.Blobs != unneeded {
			b.Fatalf("collected %+v, %v, want %d blobs", result, err, unneeded)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N*unneeded), "ms/blob")
}

// unneededOnS3 returns a collector of a registry whose bucket is behind a proxy. The registry has n
// blobs that nothing names, of 3 bytes each, with links in two repositories.
func unneededOnS3(t testing.TB, n int, fault s3.Fault) *Collector {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := s3.New()
	must(err)
	t.Cleanup(server.Close)
	bucket, err := server.Bucket(1)
	must(err)
	root := filepath.Join(server.Dir("bucket-1"), "registry/docker/registry/v2")
	store := func(content string, path ...string) { // the server keeps objects as files
		t.Helper()
		file := filepath.Join(append([]string{root}, path...)...)
		must(os.MkdirAll(filepath.Dir(file), 0o755))
		must(os.WriteFile(file, []byte(content), 0o644))
	}
	for i := range n {
		id := digest.FromString(fmt.Sprint(i))
		store("abc", "blobs/sha256", id.Encoded()[:2], id.Encoded(), "data")
		for _, repository := range []string{"a", "b"} {
			store(id.String(), "repositories", repository, "_layers/sha256", id.Encoded(), "link")
		}
	}
	through, proxy, err := s3.Proxy(bucket, fault)
	must(err)
	t.Cleanup(proxy.Close)
	u, err := url.Parse(through)
	must(err)
	opened, err := catalog.Open(t.Context(), catalog.Place{Source: filepath.Join(t.TempDir(), "catalog")})
	must(err)
	t.Cleanup(func() { must(opened.Close()) })
	log := slog.New(slog.DiscardHandler)
	r, err := registry.Open(context.Background(), registry.S3(u), nil, nil, []byte("secret"), log)
	must(err)
	c := New(Config{Catalog: opened, Registry: r, Keep: images.KeepAlways, Log: log})
	c.Delay = -time.Hour // blobs are deleted however recently they were used
	return c
}
