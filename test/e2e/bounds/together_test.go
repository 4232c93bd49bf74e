//go:build e2e

package bounds

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

// digestFiles is a shell command. It prints a digest of an image's files: those in /usr, sorted by
// path, and /etc/debian_version.
const digestFiles = "find /usr /etc/debian_version -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum"

// compare is a shell command. It fails unless digestFiles prints the command's argument. The exit
// code is the result, because ctr may lose the last output of a container if many end at once.
const compare = `found=$(` + digestFiles + `) && [ "$found" = "$0" ] || { echo "read $found, want $0" >&2; exit 1; }`

// Containers of one image start at once on a machine without cached chunks, and each of them reads
// nearly the whole image. The node fetches each unit, the index and the locations once.
func TestContainersStartedAtOnce(t *testing.T) {
	counter := count(t)
	s := start(t, site.Options{Hubs: []string{counter.url}})
	push(t, s, "base")
	m := s.Machine
	if _, err := m.Pull(t.Context(), site.Overlayfs, site.Reference("base")); err != nil {
		t.Fatal(err)
	}
	unpacked, err := m.Run(t.Context(), site.Overlayfs, site.Reference("base"), "sh", "-c", digestFiles)
	if err != nil || !strings.HasSuffix(unpacked.Output, "  -\n") {
		t.Fatalf("run with overlayfs: got %q (%v), want a digest", unpacked.Output, err)
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
	if images := sitetest.Status(t, s).Images; len(images) != 1 || !images[0].Lazy {
		t.Fatalf("images of the node: got %+v, want one, which is lazy", images)
	}
	if m := memory(t, s); m.Most > maxMemory {
		t.Errorf("the node had up to %d bytes resident, want %d at most", m.Most, int64(maxMemory))
	} else {
		t.Logf("%d containers: the node had up to %d MB resident", n, m.Most/1e6)
	}
	counter.check(t, sitetest.Status(t, s).Fetched.Requests)
}

// push pushes images to the registry, and adds them to the hub.
func push(t *testing.T, s *site.Site, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := s.Push(t.Context(), images.Dir(name), name); err != nil {
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

	mu       sync.Mutex       // guards requests
	requests map[string]int64 // by path
}

// count runs a proxy in front of the site's hub until the test ends, and counts its requests.
func count(t *testing.T) *counter {
	t.Helper()
	c := &counter{requests: map[string]int64{}}
	address, end, err := site.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests[r.URL.Path]++
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	c.url = address
	return c
}

// check checks that each unit, the index and the locations were requested once. fetched is the
// number of requests for units in the node's status; it must be the number of units.
func (c *counter) check(t *testing.T, fetched int64) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var units, indexes int64
	for path, n := range c.requests {
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
	t.Logf("%d requests for units, %d for indexes and locations", units, indexes)
	if units < 100 || units != fetched || indexes != 2 {
		t.Errorf("got %d requests for units, %d by the node's status, and %d for indexes and locations; want at least "+
			"100 for units, the same number in the status, and 2: %v", units, fetched, indexes, c.requests)
	}
}
