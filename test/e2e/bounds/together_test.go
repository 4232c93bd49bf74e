//go:build e2e

package bounds

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"lighter/test/testkit/site"
)

// everything prints the digest of all files of an image, in sorted order.
const everything = "find /usr /etc/debian_version -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum"

// compare fails unless the output of everything equals its argument. It reports by its exit code,
// because ctr may lose a container's last output if many end at once.
const compare = `found=$(` + everything + `) && [ "$found" = "$0" ] || { echo "read $found, want $0" >&2; exit 1; }`

// Containers of one image start at once on a machine without cached chunks, and all of them read
// the whole image. The node fetches each unit and the index once.
func TestContainersStartedAtOnce(t *testing.T) {
	counter := count(t)
	s := start(t, site.Options{Hubs: []string{counter.url}})
	push(t, s, "base")
	m := s.Machine
	if _, err := m.Pull(t.Context(), site.Overlayfs, site.Reference("base")); err != nil {
		t.Fatal(err)
	}
	unpacked, err := m.Run(t.Context(), site.Overlayfs, site.Reference("base"), "sh", "-c", everything)
	if err != nil || !strings.HasSuffix(unpacked.Output, "  -\n") {
		t.Fatalf("overlayfs: %q, %v", unpacked.Output, err)
	}
	if _, err := m.Pull(t.Context(), site.Lighter, site.Reference("base")); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	n := size(16, 64)
	for range n {
		group.Go(func() error {
			_, err := m.Run(t.Context(), site.Lighter, site.Reference("base"), "sh", "-c", compare,
				strings.TrimSpace(unpacked.Output))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if images := status(t, s).Images; len(images) != 1 || !images[0].Lazy {
		t.Fatalf("images: %+v", images)
	}
	if m := memory(t, s); m.Most > maxMemory {
		t.Errorf("the node had %d bytes resident, the most is %d", m.Most, int64(maxMemory))
	} else {
		t.Logf("%d containers: %d MB at most", n, m.Most/1e6)
	}
	counter.check(t, status(t, s).Fetched.Requests)
}

// push pushes images to the registry, and adds them to the hub.
func push(t *testing.T, s *site.Site, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := s.Push(t.Context(), image(t, name), name); err != nil {
			t.Fatal(err)
		}
		if err := s.Hub.Add(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// counter counts a node's requests to its hub.
type counter struct {
	url string

	mu    sync.Mutex // guards asked
	asked map[string]int64
}

// count runs a proxy in front of the site's hub until the test ends.
func count(t *testing.T) *counter {
	t.Helper()
	c := &counter{asked: map[string]int64{}}
	address, end, err := site.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked[r.URL.Path]++
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	c.url = address
	return c
}

// check checks that each unit and each index was requested once, and that the node's status has the
// same number of units.
func (c *counter) check(t *testing.T, requests int64) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var units, indexes int64
	for path, n := range c.asked {
		unit := strings.Contains(path, "/packs/") || strings.Contains(path, "/chunks/")
		index := strings.Contains(path, "/indexes/") || strings.Contains(path, "/locations/")
		if (unit || index) && n > 1 {
			t.Errorf("%s was requested %d times, want once", path, n)
		}
		if unit {
			units += n
		}
		if index {
			indexes += n
		}
	}
	t.Logf("%d units, %d indexes and locations", units, indexes)
	if units < 100 || units != requests || indexes != 2 {
		t.Errorf("%d units were requested, the status has %d; %d indexes and locations: %v", units, requests, indexes,
			c.asked)
	}
}
