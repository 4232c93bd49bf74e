package serve_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/holders"
	"lighter/hub/objects"
	"lighter/hub/serve"
	"lighter/test/testkit/catalogtest"
	"lighter/wire"
)

// traces records the calls of a server.
type traces struct{ calls []string }

func (r *traces) Take(_ context.Context, _ chunk.ID, sender string, body []byte) error {
	r.calls = append(r.calls, fmt.Sprintf("trace of %d bytes from %q", len(body), sender))
	return nil
}

func (r *traces) Used(tree chunk.ID) { r.calls = append(r.calls, "used "+tree.Short()) }

// images knows nothing.
type images struct{}

func (images) Manifest(context.Context, string) (*wire.Manifest, error) {
	return nil, catalog.ErrNotFound
}
func (images) Soon(context.Context, string) (*wire.Soon, error) { return nil, catalog.ErrNotFound }
func (images) Tree(context.Context, string) (*index.Statement, error) {
	return nil, catalog.ErrNotFound
}

// server returns a server over a catalog with the image "one" of the layers a and b, and locations
// of its tree.
func server(t *testing.T, proxies ...string) (http.Handler, *traces) {
	t.Helper()
	return loggingServer(t, slog.New(slog.DiscardHandler), proxies...)
}

// loggingServer is server with a log.
func loggingServer(t *testing.T, log *slog.Logger, proxies ...string) (http.Handler, *traces) {
	t.Helper()
	dir := t.TempDir()
	c := catalogtest.Open(t, filepath.Join(dir, "catalog.db"))
	o, err := objects.Open(t.Context(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	catalogtest.Publish(t, c, "one", "a", "b")
	id, err := c.Starts.Locations(t.Context(), catalogtest.TreeOf("a/b"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "staged")
	if err := os.WriteFile(file, []byte("locations"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.Publish(t.Context(), []objects.Staged{{Key: objects.LocationsKey(id), Path: file}}); err != nil {
		t.Fatal(err)
	}
	server := serve.Server{Catalog: c, Objects: o, Images: images{}, Traces: new(traces),
		Holders: holders.New(c.Holders, time.Hour, slog.New(slog.DiscardHandler)), Bodies: answer.NewBodies(),
		Log: log}
	for _, p := range proxies {
		server.Proxies = append(server.Proxies, netip.MustParsePrefix(p))
	}
	mux := answer.NewMux(wire.DefaultDomain, server.Log)
	server.Register(mux)
	return mux, server.Traces.(*traces)
}

func do(h http.Handler, method, path string, body []byte, change func(*http.Request)) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, wire.Prefix+"/"+wire.DefaultDomain+path, strings.NewReader(string(body)))
	if change != nil {
		change(req)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// Lookups of unknown things get 404, and requests of no valid form 400.
func TestLookups(t *testing.T) {
	h, _ := server(t)
	missing := strings.Repeat("0", 64)
	for path, want := range map[string]int{
		"/chains/a/b":               404, // a slash ends the chain
		"/chains/a":                 200,
		"/chains/none":              404,
		"/manifests/none":           404,
		"/trees/none":               404,
		"/key":                      200,
		"/indexes/x":                400,
		"/indexes/" + missing:       404,
		"/locations/" + missing:     404,
		"/packs/" + missing + "/0":  404,
		"/packs/" + missing + "/00": 400,
		"/packs/x/0":                400,
		"/chunks/" + missing:        404,
	} {
		if w := do(h, "GET", path, nil, nil); w.Code != want {
			t.Errorf("GET %s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}

// Locations carry a tag, so that caches and nodes can revalidate their copies. The hub records a
// request for locations as a use of the tree, unless it comes from a mirror.
func TestLocations(t *testing.T) {
	h, traces := server(t)
	path := "/locations/" + catalogtest.TreeOf("a/b").String()
	w := do(h, "GET", path, nil, nil)
	tag := w.Header().Get("ETag")
	if w.Code != 200 || w.Body.String() != "locations" || tag == "" || w.Header().Get("Content-Length") != "9" {
		t.Fatalf("locations: %d %q %v, want 200, their 9 bytes and a tag", w.Code, w.Body, w.Header())
	}
	for header, want := range map[string]int{
		"If-None-Match: " + tag:   304,
		"If-None-Match: \"x\"":    200,
		"Range: bytes=0-1":        200, // the whole object: caches keep a 200, but not a 206
		"Cache-Control: no-cache": 200,
		wire.CopyHeader + ": 1":   200,
	} {
		name, value, _ := strings.Cut(header, ": ")
		w := do(h, "GET", path, nil, func(req *http.Request) { req.Header.Set(name, value) })
		if w.Code != want || want == 200 && w.Body.String() != "locations" {
			t.Errorf("with %s: %d %q, want %d", header, w.Code, w.Body, want)
		}
	}
	w = do(h, "GET", path, nil, func(req *http.Request) {
		req.Header.Set("If-None-Match", tag)
		req.Header.Set("Cache-Control", "no-cache")
	})
	if w.Code != 200 {
		t.Errorf("a cache whose copy is damaged: %d, want the object again", w.Code)
	}
	if w := do(h, "HEAD", path, nil, nil); w.Code != 200 || w.Body.Len() != 0 ||
		w.Header().Get("Content-Length") != "9" {
		t.Errorf("HEAD: %d %q %v, want 200, no body and a length of 9", w.Code, w.Body, w.Header())
	}
	if len(traces.calls) != 7 {
		t.Errorf("%d uses were recorded, want 7: all but that of the mirror: %q", len(traces.calls), traces.calls)
	}
}

// A report of what a node has may be sent again. Its answer says which trees the hub does not know.
// Invalid reports are refused.
func TestHeld(t *testing.T) {
	h, _ := server(t)
	report := func(body string) *httptest.ResponseRecorder { return do(h, "POST", "/held", []byte(body), nil) }
	known, unknown := catalogtest.TreeOf("a/b").String(), strings.Repeat("0", 64)
	id := strings.Repeat("x", 32)
	for range 2 {
		w := report(`{"holder": "` + id + `", "kind": "node", "name": "n1", ` +
			`"trees": ["` + known + `", "` + unknown + `"], "new": 1}`)
		if want := `{"unknown":["` + unknown + `"]}`; w.Code != 200 || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("a report of held trees: %d %s, want 200 %s", w.Code, w.Body, want)
		}
	}
	for body, want := range map[string]int{
		`{"holder": "` + id + `", "kind": "node"}`: 200,
		``:                                    400,
		`{"holder": "short", "kind": "node"}`: 400,
		`{"holder": "` + strings.Repeat("x", 65) + `", "kind": "node"}`:              400,
		`{"holder": "` + id + `", "kind": "other"}`:                                  400,
		`{"holder": "` + id + `", "kind": "node", "name": "a\nb"}`:                   400,
		`{"holder": "` + id + `", "kind": "node", "trees": ["x"]}`:                   400,
		`{"holder": "` + id + `", "kind": "node", "trees": [` + many(wire.MaxHeld+1): 400,
		`{"holder": "` + strings.Repeat(" ", wire.MaxHeldBytes):                      413,
	} {
		if w := report(body); w.Code != want {
			t.Errorf("%.80s: %d %s, want %d", body, w.Code, w.Body, want)
		}
	}
	if w := report(`{"holder": "` + id + `", "kind": "node", "trees": [` + many(wire.MaxHeld)); w.Code != 200 {
		t.Errorf("a report of the largest size: %d %s, want 200", w.Code, w.Body)
	}
}

// many returns the end of a report: n trees, and the closing brackets.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%064x",`, i)
	}
	return strings.TrimSuffix(b.String(), ",") + "]}"
}

// A proxy that is not among the trusted ones is logged once.
func TestUnnamedProxyIsLogged(t *testing.T) {
	var log strings.Builder
	h, _ := loggingServer(t, slog.New(slog.NewTextHandler(&log, nil)), "10.0.0.0/24")
	for from, lines := range map[string]int{"10.0.0.1": 0, "192.0.2.1": 1} {
		log.Reset()
		for range 2 {
			body := trace.Trace{}.Encode()
			do(h, "POST", "/traces/"+catalogtest.TreeOf("a/b").String(), body, func(req *http.Request) {
				req.RemoteAddr = from + ":1234"
				req.Header.Set("X-Forwarded-For", "198.51.100.7")
			})
		}
		if got := strings.Count(log.String(), "address="+from); got != lines {
			t.Errorf("from %s: the log names it %d times, want %d: %s", from, got, lines, log.String())
		}
	}
}

// The sender of a trace is the client, seen through trusted proxies only.
func TestSenders(t *testing.T) {
	for _, test := range []struct{ from, forwarded, want string }{
		{"192.0.2.1", "", "192.0.2.1/32"},
		{"192.0.2.1", "6.6.6.6", "192.0.2.1/32"}, // no trusted proxy
		{"10.0.0.1", "", "10.0.0.1/32"},
		{"10.0.0.1", "6.6.6.6, 198.51.100.7, 10.0.0.2", "198.51.100.7/32"},
		{"10.0.0.1", "nonsense", "10.0.0.1/32"},
		{"127.0.0.1", "", ""},
		{"127.0.0.1", "1.2.3.4", "127.0.0.1"}, // all clients behind an unknown proxy on this machine are one sender
		{"10.0.0.1", "::1", "::1"},
		{"[2001:db8:1:2:3::4]", "", "2001:db8:1:2::/64"},
		{"[::ffff:10.0.0.1]", "198.51.100.7", "198.51.100.7/32"},
	} {
		h, traces := server(t, "10.0.0.0/24")
		body := trace.Trace{}.Encode()
		w := do(h, "POST", "/traces/"+catalogtest.TreeOf("a/b").String(), body, func(req *http.Request) {
			req.RemoteAddr = test.from + ":1234"
			if test.forwarded != "" {
				req.Header.Set("X-Forwarded-For", test.forwarded)
			}
		})
		want := fmt.Sprintf("trace of %d bytes from %q", len(body), test.want)
		if w.Code != 204 || len(traces.calls) != 1 || traces.calls[0] != want {
			t.Errorf("from %s for %q: %d, %q, want %q", test.from, test.forwarded, w.Code, traces.calls, want)
		}
	}
}
