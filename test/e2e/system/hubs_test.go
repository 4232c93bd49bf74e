//go:build e2e

package system

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// proxy stands between a node and its hub. It forwards a request to the hub unless spoil answers
// the request.
type proxy struct {
	spoil   atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	lookups atomic.Int32 // requests about chains, manifests and trees since setSpoil
}

// serve starts the proxy, and returns the hub URLs for the node.
func (p *proxy) serve(t *testing.T) []string {
	t.Helper()
	address, end, err := site.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/chains/") || strings.Contains(r.URL.Path, "/manifests/") ||
			strings.Contains(r.URL.Path, "/trees/") {
			p.lookups.Add(1)
		}
		spoil := p.spoil.Load()
		return spoil != nil && (*spoil)(w, r)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return []string{address}
}

// setSpoil replaces p.spoil, and sets p.lookups to 0. If spoil is nil, all requests are forwarded.
func (p *proxy) setSpoil(spoil func(w http.ResponseWriter, r *http.Request) bool) {
	p.lookups.Store(0)
	p.spoil.Store(nil)
	if spoil != nil {
		p.spoil.Store(&spoil)
	}
}

// onPath returns a function that calls spoil for requests whose paths contain word, and forwards
// other requests.
func onPath(word string, spoil func(w http.ResponseWriter, r *http.Request)) func(w http.ResponseWriter,
	r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, word) {
			return false
		}
		spoil(w, r)
		return true
	}
}

// stall begins an answer and never ends it.
func stall(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // an error does not matter
	<-r.Context().Done()
}

// garbage answers with bytes that are no object of a hub.
func garbage(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte(strings.Repeat("<html>please log in</html>\n", 1000)))
}

// runsPlain pulls python, which has several layers, as an ordinary image, and runs it.
func runsPlain(t *testing.T, s *site.Site) {
	t.Helper()
	moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "python") })
	if moved < 30<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" {
		t.Errorf("python printed %q, want hello", out)
	}
	for _, e := range sitetest.Status(t, s).Images {
		if e.Lazy || e.Why == "" {
			t.Errorf("the status: %+v, want an image that is not lazy, and the reason", e)
		}
	}
}

// If a hub fails or returns wrong answers, an image of several layers is pulled as an ordinary
// image and runs. The node makes one lookup.
func TestBadHub(t *testing.T) {
	var p proxy
	s := start(t, site.Options{Hubs: p.serve(t), Unlabelled: true}, "+python")
	for _, c := range []struct {
		name  string
		spoil func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"lookups never end", onPath("/chains/", stall)},
		{"indexes never end", onPath("/indexes/", stall)},
		{"indexes are garbage", onPath("/indexes/", garbage)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.setSpoil(c.spoil)
			runsPlain(t, s)
			if n := p.lookups.Load(); n != 1 {
				t.Errorf("the hub got %d lookups, want 1", n)
			}
			if err := s.Machine.Wipe(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
	p.setSpoil(nil)
	pull(t, s, site.Lighter, "python")
	if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" ||
		len(sitetest.Status(t, s).Mounts) != 1 {
		t.Errorf("with a working hub python printed %q, want hello; mounts %+v, want one", out,
			sitetest.Status(t, s).Mounts)
	}
}

// A statement that no pinned key has signed is refused. The log says so, and the image is pulled as
// an ordinary image.
func TestForgedHub(t *testing.T) {
	s := start(t, site.Options{HubKey: "ed25519:" + strings.Repeat("A", 43) + "="}, "+python")
	runsPlain(t, s)
	for _, e := range sitetest.Status(t, s).Images {
		if !strings.Contains(e.Why, "refused") {
			t.Errorf("the reason in the status: %q, want \"refused\" in it", e.Why)
		}
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if err != nil || !strings.Contains(string(log), "refused") {
		t.Errorf("the log does not say that the statement was refused (%v)", err)
	}
}

// Locations are optional: an image is also lazy if the hub never ends its answer with the
// locations.
func TestHubWithoutLocations(t *testing.T) {
	var p proxy
	s := start(t, site.Options{Hubs: p.serve(t)}, "+python")
	p.setSpoil(onPath("/locations/", stall))
	pull(t, s, site.Lighter, "python")
	if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" ||
		len(sitetest.Status(t, s).Mounts) != 1 {
		t.Errorf("without locations python printed %q, want hello; mounts %+v, want one", out,
			sitetest.Status(t, s).Mounts)
	}
}

// In each unpack mode of containerd, the pull of a claimed image downloads no layer. After the node
// was killed, the next node still has the image, and asks the hub only for units. Another namespace
// of containerd can use the image. The node removes the image's tree when the last namespace
// removes the image.
func TestLifeOfALazyImage(t *testing.T) {
	for _, o := range []site.Options{{}, {Unlabelled: true}, {Unpacks: 3}, {Unlabelled: true, Unpacks: 3}} {
		t.Run(fmt.Sprintf("unlabelled %v unpacks %d", o.Unlabelled, o.Unpacks), func(t *testing.T) {
			var p proxy
			o.Hubs = p.serve(t)
			s := start(t, o, "+python")
			if moved := images.Received(t, s, func() { pull(t, s, site.Lighter, "python") }); moved > 3<<20 {
				t.Errorf("the pull received %d bytes, want at most 3 MiB: no layer", moved)
			}
			p.setSpoil(func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/packs/") {
					return false
				}
				http.Error(w, "gone", http.StatusServiceUnavailable)
				return true
			})
			s.Machine.KillNode()
			if err := s.Machine.StartNode(t.Context()); err != nil {
				t.Fatal(err)
			}
			reconnect(t, s)
			if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" {
				t.Errorf("python printed %q, want hello", out)
			}
			ref := site.Reference("python")
			ctr(t, s, "--namespace", "two", "images", "pull", "--plain-http", "--snapshotter", site.Lighter, ref)
			if n := p.lookups.Load(); n != 0 {
				t.Errorf("the hub got %d requests about a tree that the node has, want none", n)
			}
			if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			if trees, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*")); err != nil ||
				len(trees) != 1 {
				t.Errorf("trees while another namespace has the image: %v (%v), want one", trees, err)
			}
			ctr(t, s, "--namespace", "two", "images", "rm", "--sync", ref)
			if found := left(t, s); len(found) > 0 {
				t.Errorf("files and mounts after the image was removed, want none:\n%s", strings.Join(found, "\n"))
			}
		})
	}
}

// The creation of a container waits for the hub if the image was claimed and its index is not
// fetched yet. containerd's garbage collector waits for this creation, and other requests to
// containerd wait for the garbage collector. If the hub never ends its answer, the creation fails
// soon, and all continue.
func TestSilentHubDuringGarbageCollection(t *testing.T) {
	var p proxy
	s := start(t, site.Options{Hubs: p.serve(t), NodeArgs: []string{"--trust", "chain"}}, "+python", "base")
	pull(t, s, site.Lighter, "python")
	pull(t, s, site.Lighter, "base") // the node finds base among python's layers
	waiting := make(chan struct{}, 1)
	p.setSpoil(onPath("/trees/", func(w http.ResponseWriter, r *http.Request) {
		waiting <- struct{}{}
		stall(w, r)
	}))
	created := make(chan error, 1)
	go func() {
		_, err := s.Machine.Run(t.Context(), site.Lighter, site.Reference("base"), "true")
		created <- err
	}()
	select {
	case <-waiting:
	case err := <-created:
		t.Fatalf("the hub got no request for the tree: %v", err)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("python")); err != nil {
		t.Error(err)
	}
	if err := <-created; err == nil || !strings.Contains(err.Error(), "try again when") {
		t.Errorf("a container whose tree cannot be fetched: %v, want an error with \"try again when\"", err)
	}
	p.setSpoil(nil)
	if out := run(t, s, site.Lighter, "base", "echo", "hello"); out != "hello\n" {
		t.Errorf("echo printed %q, want hello", out)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("base")); err != nil {
		t.Error(err)
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("files and mounts after the image was removed, want none:\n%s", strings.Join(found, "\n"))
	}
}
