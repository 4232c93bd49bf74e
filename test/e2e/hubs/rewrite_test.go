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

	"lighter/test/testkit/site"
	"lighter/wire"
)

// requests counts a node's requests to its hub by kind: chunks, packs, locations, …, and those that
// do not count as starts: copies.
type requests struct {
	mu sync.Mutex // guards n
	n  map[string]int
}

// serve starts a proxy in front of the hub, which counts requests, and returns the proxy's URL.
func (r *requests) serve(t *testing.T) string {
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

func (r *requests) of(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[kind]
}

func (r *requests) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n = map[string]int{}
}

// Packs are rewritten while a container reads from them: no read fails, and no chunk is requested
// by its ID. A day later the node renews the locations, though it mounts nothing. So it reads units
// when the old packs are gone, too.
func TestPacksAreRewrittenUnderAContainer(t *testing.T) {
	var asked requests
	const keeps = "[gc]\nevery_minutes = 0\ndelay_minutes = 0\nkeep_minutes = 60\n"
	s := start(t, site.Options{Hubs: []string{asked.serve(t)}}, keeps)
	add(t, s, base(t), "base")
	add(t, s, image(t, 0, 24), "goes")
	add(t, s, image(t, 4, 8), "keeps")
	c := run(t, s, site.Reference("keeps"))
	reads(t, c, 4, 8)
	good(t, s.Hub, "rm", "goes:latest")

	asked.reset()
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
	if asked.of("chunks") > 0 || asked.of("packs") == 0 {
		t.Errorf("while the old packs are kept, requests %v, want units only", asked.n)
	}

	// The locations get old while the container runs. The node looks for such locations every hour,
	// and soon after its start.
	files, err := filepath.Glob(filepath.Join(s.Machine.NodeRoot(), "trees", "*", "locations"))
	if err != nil || len(files) != 1 {
		t.Fatalf("locations on the disk: %v (%v), want one file", files, err)
	}
	before := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(files[0], before, before); err != nil {
		t.Fatal(err)
	}
	asked.reset()
	if err := s.Machine.RestartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "newer locations", func() bool {
		info, err := os.Stat(files[0])
		return err == nil && info.ModTime().After(before.Add(time.Hour)) && asked.of("locations") > 0
	})
	if asked.of("copies") != 1 || asked.of("locations") != 1 {
		t.Errorf("requests %v, want locations once, and not as a start", asked.n)
	}

	s.Hub.Kill()
	s.SetHubArgs("--config", configFile(t, collectsAtOnce))
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := collect(t, s.Hub); done.Bytes == 0 {
		t.Fatalf("the collection that deletes the old packs: %+v, want bytes freed", done)
	}
	asked.reset()
	forget(t, s)
	reads(t, c, 4, 8)
	if asked.of("chunks") > 0 || asked.of("locations") > 0 || asked.of("packs") == 0 {
		t.Errorf("when the old packs are gone, requests %v, want units only", asked.n)
	}
}
