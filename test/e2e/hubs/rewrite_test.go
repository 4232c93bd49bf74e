//go:build e2e

package hubs

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/wire"
)

// requestCounter counts a node's requests to its hub.
type requestCounter struct {
	mu sync.Mutex // guards n
	// n has the number of requests by the kind of object in their path: "chunks", "packs",
	// "locations" and so on. Requests with wire.CopyHeader, which a hub does not count as starts,
	// also count as "copies".
	n map[string]int
}

// serve starts a proxy in front of the hub, and returns the proxy's URL. The proxy counts requests.
func (r *requestCounter) serve(t *testing.T) string {
	t.Helper()
	r.reset()
	address, end, err := site.Intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		if parts := strings.Split(req.URL.Path, "/"); len(parts) > 4 { // /lighter/1/DOMAIN/KIND
			r.mu.Lock()
			r.n[parts[4]]++
			if req.Header.Get(wire.CopyHeader) != "" {
				r.n["copies"]++
			}
			r.mu.Unlock()
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return address
}

func (r *requestCounter) of(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[kind]
}

func (r *requestCounter) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n = map[string]int{}
}

// A collection rewrites packs while a container reads from them. No read fails, and the node
// requests no chunk by its ID. A day later the node fetches newer locations, although it mounts
// nothing. So it fetches units, and no single chunks, when the old packs are deleted, too.
func TestPacksAreRewrittenUnderAContainer(t *testing.T) {
	var counter requestCounter
	const keeps = "[gc]\nevery_minutes = 0\ndelay_minutes = 0\nkeep_minutes = 60\n"
	s := start(t, site.Options{Hubs: []string{counter.serve(t)}}, keeps)
	add(t, s, images.Dir("base"), "base")
	add(t, s, image(t, 0, 24), "goes")
	add(t, s, image(t, 4, 8), "keeps")
	c := run(t, s, site.Reference("keeps"))
	reads(t, c, 4, 8)
	hubCommand(t, s.Hub, "rm", "goes:latest")

	counter.reset()
	collected := make(chan error, 1)
	var out string
	go func() {
		var err error
		out, err = s.Hub.Lighter(t.Context(), "gc --wait", "--json")
		collected <- err
	}()
	for running := true; running; {
		select {
		case err := <-collected:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
		}
		forget(t, s)
		reads(t, c, 4, 8)
	}
	var done wire.Collection
	if err := json.Unmarshal([]byte(out), &done); err != nil {
		t.Fatal(err)
	}
	if done.Rewritten == 0 || done.Trees != 1 {
		t.Fatalf("the collection: %+v, want a tree freed, and packs rewritten", done)
	}
	if counter.of("chunks") > 0 || counter.of("packs") == 0 {
		t.Errorf("requests while the old packs are kept: %v, want some for packs, and none for chunks", counter.n)
	}

	// The locations look 25 hours old while the container runs. The node looks for such locations
	// every hour, and within seconds after its start.
	files, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees", "*", "locations"))
	if err != nil || len(files) != 1 {
		t.Fatalf("locations on the disk: %v (%v), want one file", files, err)
	}
	before := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(files[0], before, before); err != nil {
		t.Fatal(err)
	}
	counter.reset()
	if err := s.Machine.RestartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "newer locations", func() bool {
		log, err := os.ReadFile(s.Machine.NodeLog())
		return err == nil && strings.Contains(string(log), "fetched locations")
	})
	if counter.of("copies") != 1 || counter.of("locations") != 1 {
		t.Errorf("requests of the renewal: %v, want one for locations, which is marked as a copy", counter.n)
	}

	s.Hub.Kill()
	s.SetHubArgs("--config", configFile(t, collectsAtOnce))
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := collect(t, s.Hub); done.Bytes == 0 {
		t.Fatalf("the collection that deletes the old packs: %+v, want bytes freed", done)
	}
	counter.reset()
	forget(t, s)
	reads(t, c, 4, 8)
	if counter.of("chunks") > 0 || counter.of("locations") > 0 || counter.of("packs") == 0 {
		t.Errorf("requests after the old packs were deleted: %v, want some for packs, none for chunks and locations",
			counter.n)
	}
}
