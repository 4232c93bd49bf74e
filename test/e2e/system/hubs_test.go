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

	"lighter/test/testkit/site"
)

// middle is a proxy between a node and its hub. It forwards a request to the hub unless spoil
// answers it.
type middle struct {
	spoil   atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	lookups atomic.Int32
}

// serve starts the proxy, and returns the hub URLs for the node.
func (m *middle) serve(t *testing.T) []string {
	t.Helper()
	address, end, err := site.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/chains/") || strings.Contains(r.URL.Path, "/manifests/") ||
			strings.Contains(r.URL.Path, "/trees/") {
			m.lookups.Add(1)
		}
		spoil := m.spoil.Load()
		return spoil != nil && (*spoil)(w, r)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return []string{address}
}

// with replaces m.spoil, and sets m.lookups to 0. If spoil is nil, all requests are forwarded.
func (m *middle) with(spoil func(w http.ResponseWriter, r *http.Request) bool) {
	m.lookups.Store(0)
	m.spoil.Store(nil)
	if spoil != nil {
		m.spoil.Store(&spoil)
	}
}

// of returns a function that calls spoil only for requests whose paths contain a word.
func of(word string, spoil func(w http.ResponseWriter, r *http.Request)) func(w http.ResponseWriter,
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

func garbage(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte(strings.Repeat("<html>please log in</html>\n", 1000)))
}

// runsPlain pulls python, which has several layers, as an ordinary image, and runs it.
func runsPlain(t *testing.T, s *site.Site) {
	t.Helper()
	moved := received(t, s, func() { pull(t, s, site.Lighter, "python") })
	if moved < 30<<20 {
		t.Errorf("the pull received %d bytes, want a whole image", moved)
	}
	if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" {
		t.Errorf("python printed %q", out)
	}
	for _, e := range status(t, s).Images {
		if e.Lazy || e.Why == "" {
			t.Errorf("the status: %+v", e)
		}
	}
}

// If a hub fails or returns wrong answers, an image of several layers is pulled as an ordinary
// image and runs. The node makes one lookup.
func TestBadHub(t *testing.T) {
	var m middle
	s := start(t, site.Options{Hubs: m.serve(t), Unlabelled: true}, "+python")
	for _, c := range []struct {
		name  string
		spoil func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"lookups never end", of("/chains/", stall)},
		{"indexes never end", of("/indexes/", stall)},
		{"indexes are garbage", of("/indexes/", garbage)},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.with(c.spoil)
			runsPlain(t, s)
			if n := m.lookups.Load(); n != 1 {
				t.Errorf("the hub got %d requests", n)
			}
			if err := s.Machine.Wipe(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
	m.with(nil)
	pull(t, s, site.Lighter, "python")
	if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" ||
		len(status(t, s).Mounts) != 1 {
		t.Errorf("python printed %q, or is not lazy with a working hub", out)
	}
}

// A statement that no pinned key has signed is refused. The log says so, and the image is pulled as
// an ordinary image.
func TestForgedHub(t *testing.T) {
	s := start(t, site.Options{HubKey: "ed25519:" + strings.Repeat("A", 43) + "="}, "+python")
	runsPlain(t, s)
	for _, e := range status(t, s).Images {
		if !strings.Contains(e.Why, "refused") {
			t.Errorf("the reason in the status: %q", e.Why)
		}
	}
	log, err := os.ReadFile(s.Machine.NodeLog())
	if err != nil || !strings.Contains(string(log), "refused") {
		t.Errorf("the log does not say that the statement was refused (%v)", err)
	}
}

// Locations are optional: without them the image is lazy, too.
func TestHubWithoutLocations(t *testing.T) {
	var m middle
	s := start(t, site.Options{Hubs: m.serve(t)}, "+python")
	m.with(of("/locations/", stall))
	pull(t, s, site.Lighter, "python")
	if out := run(t, s, site.Lighter, "python", "python3", "-c", `print("hello")`); out != "hello\n" ||
		len(status(t, s).Mounts) != 1 {
		t.Errorf("python printed %q, or is not lazy", out)
	}
}

// In each unpack mode of containerd, no layer is downloaded. A claimed image survives the node and
// needs no hub. Another namespace can use it, and it is removed with its last namespace.
func TestLifeOfALazyImage(t *testing.T) {
	for _, o := range []site.Options{{}, {Unlabelled: true}, {Unpacks: 3}, {Unlabelled: true, Unpacks: 3}} {
		t.Run(fmt.Sprintf("unlabelled %v unpacks %d", o.Unlabelled, o.Unpacks), func(t *testing.T) {
			var m middle
			o.Hubs = m.serve(t)
			s := start(t, o, "+python")
			if moved := received(t, s, func() { pull(t, s, site.Lighter, "python") }); moved > 3<<20 {
				t.Errorf("the pull received %d bytes", moved)
			}
			m.with(func(w http.ResponseWriter, r *http.Request) bool {
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
				t.Errorf("python printed %q", out)
			}
			ref := site.Reference("python")
			ctr(t, s, "--namespace", "two", "images", "pull", "--plain-http", "--snapshotter", site.Lighter, ref)
			if n := m.lookups.Load(); n != 0 {
				t.Errorf("the hub got %d requests about local trees", n)
			}
			if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			if trees, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*")); err != nil ||
				len(trees) != 1 {
				t.Errorf("trees while another namespace has the image: %v (%v)", trees, err)
			}
			ctr(t, s, "--namespace", "two", "images", "rm", "--sync", ref)
			if found := left(t, s); len(found) > 0 {
				t.Errorf("left behind: %s", strings.Join(found, "\n"))
			}
		})
	}
}

// A container on a claimed, but not fetched base waits for the hub. containerd's garbage collector
// waits for the container, and all others wait for the collector. A hub that never ends its answer
// delays them only for a short time.
func TestSilentHubDuringGarbageCollection(t *testing.T) {
	var m middle
	s := start(t, site.Options{Hubs: m.serve(t), NodeArgs: []string{"--trust", "chain"}}, "+python", "base")
	pull(t, s, site.Lighter, "python")
	pull(t, s, site.Lighter, "base") // the node finds base among python's layers
	waiting := make(chan struct{}, 1)
	m.with(of("/trees/", func(w http.ResponseWriter, r *http.Request) {
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
		t.Errorf("a container whose tree cannot be fetched: %v", err)
	}
	m.with(nil)
	if out := run(t, s, site.Lighter, "base", "echo", "hello"); out != "hello\n" {
		t.Errorf("echo printed %q", out)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("base")); err != nil {
		t.Error(err)
	}
	if found := left(t, s); len(found) > 0 {
		t.Errorf("left behind: %s", strings.Join(found, "\n"))
	}
}
