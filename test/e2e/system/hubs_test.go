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

// middle stands between a node and its hub. What spoil does not answer, the hub
// does.
type middle struct {
	spoil   atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	lookups atomic.Int32
}

// serve answers in place of the site's hub, and returns what its node asks instead.
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

// with spoils what the function says, until it is called again; nil: nothing.
func (m *middle) with(spoil func(w http.ResponseWriter, r *http.Request) bool) {
	m.lookups.Store(0)
	m.spoil.Store(nil)
	if spoil != nil {
		m.spoil.Store(&spoil)
	}
}

// of spoils the paths that hold a word.
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
	_ = http.NewResponseController(w).Flush() // what cannot be sent is not missed
	<-r.Context().Done()
}

func garbage(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte(strings.Repeat("<html>please log in</html>\n", 1000)))
}

// runsPlain pulls python, which has several layers, as usual, and runs it.
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

// What a hub that fails, or lies, knows of an image of several layers is worth
// nothing: the image is pulled as usual and runs. The hub is asked once.
func TestBadHub(t *testing.T) {
	var m middle
	s := start(t, site.Options{Hubs: m.serve(t), Unlabelled: true}, "+python")
	for _, c := range []struct {
		name  string
		spoil func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"look-ups never end", of("/chains/", stall)},
		{"indexes never end", of("/indexes/", stall)},
		{"indexes are garbage", of("/indexes/", garbage)},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.with(c.spoil)
			runsPlain(t, s)
			if n := m.lookups.Load(); n != 1 {
				t.Errorf("the hub was asked %d times", n)
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
		t.Errorf("python printed %q, or is not lazy although all is well", out)
	}
}

// A statement that no pinned key has signed is refused, said, and the image is
// pulled as usual.
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

// Locations are a hint: without them the image is as lazy as with them.
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

// However containerd unpacks, no layer is downloaded; what is claimed survives
// the node and needs no hub; another namespace finds it; and it goes with the
// last.
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
				t.Errorf("the hub was asked %d times about what is here", n)
			}
			if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			if trees, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees/*")); err != nil ||
				len(trees) != 1 {
				t.Errorf("another namespace has the image, and the trees are %v (%v)", trees, err)
			}
			ctr(t, s, "--namespace", "two", "images", "rm", "--sync", ref)
			if found := left(t, s); len(found) > 0 {
				t.Errorf("left behind: %s", strings.Join(found, "\n"))
			}
		})
	}
}

// A container on a base that was only claimed waits for the hub, and with it
// containerd's garbage collector, which all others wait for then. A hub that never
// ends its answer does not keep them for long.
func TestSilentHubDuringGarbageCollection(t *testing.T) {
	var m middle
	s := start(t, site.Options{Hubs: m.serve(t), NodeArgs: []string{"--trust", "chain"}}, "+python", "base")
	pull(t, s, site.Lighter, "python")
	pull(t, s, site.Lighter, "base") // found among python's layers
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
		t.Fatalf("the hub was not asked for the tree: %v", err)
	}
	if err := s.Machine.RemoveImage(t.Context(), site.Reference("python")); err != nil {
		t.Error(err)
	}
	if err := <-created; err == nil || !strings.Contains(err.Error(), "try again when") {
		t.Errorf("a container whose tree cannot be had: %v", err)
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
