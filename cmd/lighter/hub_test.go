package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/cmd/command"
	"lighter/hub"
	"lighter/test/testkit/layout"
)

// servedHub runs a hub with the domain "team", changed by change, until the test ends.
func servedHub(t *testing.T, root string, change func(*hub.Config)) (address string) {
	t.Helper()
	c := hub.DefaultConfig()
	c.Root, c.DiskReserve = root, 0
	c.Domains = []hub.Domain{{Name: "team", Repositories: []string{"team/**"}}}
	change(&c)
	ctx, end := context.WithCancel(t.Context())
	h, err := hub.Open(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, listener) }()
	t.Cleanup(func() {
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// counted returns the address of a proxy before a hub, and counts the uploads of blobs that begin.
func counted(t *testing.T, hub string) (address string, uploads *atomic.Int64) {
	t.Helper()
	to, err := url.Parse(hub)
	if err != nil {
		t.Fatal(err)
	}
	uploads = new(atomic.Int64)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost && strings.Contains(req.URL.Path, "/blobs/uploads/") {
			uploads.Add(1)
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	return server.URL, uploads
}

// imageLayout returns the directory of an OCI layout of an image with one file.
func imageLayout(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	empty, full := filepath.Join(dir, "empty"), filepath.Join(dir, "full")
	err := os.MkdirAll(filepath.Join(empty, "blobs", "sha256"), 0o755)
	if err == nil {
		err = layout.Write(empty,
			v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest},
			v1.Image{Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}})
	}
	if err == nil {
		err = layout.Extend(empty, full, func(l *layout.Layer) error { return l.File("file", []byte(content)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// An argument that the hub refuses as invalid gives the exit code of a wrong argument, like an
// argument that the command itself refuses. An object that the hub does not have, or a request that
// it does not allow, does not.
func TestExitCodesOfAHubsAnswers(t *testing.T) {
	address := servedHub(t, t.TempDir(), func(*hub.Config) {})
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{command.ExitUsage, []string{"rm", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"inspect", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"verify", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"holders", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"trace", "show", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"mirror", t.TempDir(), "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"add", "docker://127.0.0.1:1/Upper"}, "HOST/REPO:TAG"},
		{command.ExitUsage, []string{"add", "docker://127.0.0.1:1/a:1", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"add", "docker://127.0.0.1:1/a:1", "team/a:1"}, "--domain team"},
		{command.ExitUsage, []string{"add", "--platform", "arm64", "docker://127.0.0.1:1/a:1"}, "OS/ARCH"},
		{command.ExitUsage, []string{"retention", "run"}, "rule"},
		{command.ExitFailed, []string{"add", "docker://127.0.0.1:1/a:1"}, "127.0.0.1:1"},
		{command.ExitFailed, []string{"rm", "not/there:1"}, "not/there:1: not found (lighter images"},
		{command.ExitFailed, []string{"verify", "not/there:1"}, "not/there:1: not found (lighter images"},
		{command.ExitFailed, []string{"jobs", "cancel", "17"}, "17"},
		{command.ExitFailed, []string{"images", "--domain", "other"}, "no domain"},
	} {
		code, stdout, stderr := lighter(t, append(c.args, "--hub", address)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%q: exit %d, %q, printed %q; want exit %d and %q", c.args, code, stderr, stdout, c.code, c.want)
		}
	}
}

// A local image is pushed only if the hub accepts it under its name and does not have it yet.
func TestAddAsksBeforeItPushes(t *testing.T) {
	dir := t.TempDir()
	token, wrong := filepath.Join(dir, "token"), filepath.Join(dir, "wrong")
	for _, file := range []string{token, wrong} {
		if err := os.WriteFile(file, bytes.Repeat([]byte(filepath.Base(file)[:1]), 40), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "hub")
	address := servedHub(t, root, func(c *hub.Config) { c.AdminTokenFile = token })
	proxy, uploads := counted(t, address)
	source := "oci:" + imageLayout(t, strings.Repeat("content ", 1000))
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{command.ExitUsage, "--domain team", []string{"team/a:1", "--token-file", token}},
		{command.ExitFailed, "the token is not that of", []string{"a:1", "--token-file", wrong}},
		{command.ExitFailed, "give it with --token-file", []string{"a:1"}},
	} {
		code, _, stderr := lighter(t, append([]string{"add", "--hub", proxy, source}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: exit %d, %q, want exit %d and %q", c.args, code, stderr, c.code, c.want)
		}
	}
	if n := uploads.Load(); n > 0 {
		t.Errorf("%d blobs were pushed before the hub refused the image, want none", n)
	}
	add := func(args ...string) (pushed int64) {
		t.Helper()
		before := uploads.Load()
		printedBy(t, append([]string{"add", "--hub", proxy, "--token-file", token, source}, args...)...)
		return uploads.Load() - before
	}
	if n := add("a:1"); n != 2 {
		t.Errorf("%d blobs of a new image were pushed, want its layer and its configuration", n)
	}
	for _, name := range []string{"a:1", "a:2"} {
		if n := add(name); n > 0 {
			t.Errorf("%d blobs of an image that the hub has were pushed for %s, want none", n, name)
		}
	}
	if n := add("team/a:1", "--domain", "team"); n != 2 {
		t.Errorf("%d blobs were pushed to the domain, want 2", n)
	}
}
