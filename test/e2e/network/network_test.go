//go:build e2e

package network

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lighter/node/report"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// outage returns how long the hub is away in TestHubOutage.
func outage() time.Duration {
	if os.Getenv("LIGHTER_SOAK") != "" {
		return time.Minute
	}
	return 3 * time.Second
}

// reading returns a command that reads all files below dirs, and prints their digest. Spaces
// separate the directories.
func reading(dirs string) []string {
	return []string{"sh", "-c", "find " + dirs + " -xdev -type f -print0 | sort -z | xargs -0 cat | sha256sum"}
}

// readMuch is a command that reads so many files that the hub can go away meanwhile.
var readMuch = reading("/usr/lib /etc")

// start starts a site whose hub has the images base and python.
func start(t *testing.T, options site.Options) *site.Site {
	t.Helper()
	var err error
	if options.Lighter, err = site.Binary(); err != nil {
		t.Fatal(err)
	}
	options.Ingested = []string{"base", "python"}
	return sitetest.Start(t, options)
}

func pull(t *testing.T, s *site.Site, snapshotter, name string) {
	t.Helper()
	if _, err := s.Machine.Pull(t.Context(), snapshotter, site.Reference(name)); err != nil {
		t.Fatal(err)
	}
}

// run runs a container, and returns its output. The test fails if the container fails.
func run(t *testing.T, s *site.Site, snapshotter, name string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ran, err := s.Machine.Run(ctx, snapshotter, site.Reference(name), argv...)
	if err != nil {
		t.Errorf("run a container of %s: %v", name, err)
	}
	return ran.Output
}

// until waits until ok accepts the node's status, for two minutes at most.
func until(t *testing.T, s *site.Site, what string, ok func(report.Status) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if ok(sitetest.Status(t, s)) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("timeout: waiting for %s: the node's status is %+v", what, sitetest.Status(t, s))
}

// during runs readMuch in a container of python. Once the node has fetched 4 MiB, it calls fn while
// the container runs. It returns the container's output.
func during(t *testing.T, s *site.Site, fn func()) string {
	t.Helper()
	before := sitetest.Status(t, s).Fetched.Bytes
	output := make(chan string)
	go func() { output <- run(t, s, site.Lighter, "python", readMuch...) }()
	until(t, s, "the node to fetch 4 MiB", func(st report.Status) bool { return st.Fetched.Bytes > before+4<<20 })
	fn()
	return <-output
}

// forget empties the node's cache and the page cache.
func forget(t *testing.T, s *site.Site) {
	t.Helper()
	if _, err := s.Machine.Lighter(t.Context(), "cache", "prune"); err != nil {
		t.Fatal(err)
	}
	dropCaches(t)
}

func dropCaches(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
}

// While a container reads, the hub crashes or hangs for some time. The reads take longer, but do
// not fail, and a container of a cached image needs no hub. With a mirror on an ordinary web
// server, a pull is lazy without the hub, and the node reads from the mirror when the hub has
// crashed or hangs. When the hub is back, the node uses it again.
func TestHubOutage(t *testing.T) {
	// On this slow link, readMuch still has to fetch chunks when the outage begins.
	s := start(t, site.Options{Link: "300mbit", Hubs: []string{site.HubURL, site.WebURL}})
	pull(t, s, site.Overlayfs, "python")
	want := run(t, s, site.Overlayfs, "python", readMuch...)
	pull(t, s, site.Lighter, "base")
	pull(t, s, site.Lighter, "python")
	freeze := func() {
		if err := s.Hub.Freeze(); err != nil {
			t.Error(err)
		}
	}
	for name, fault := range map[string]struct {
		begin func()
		end   func() error
	}{
		"crashed": {s.Hub.Kill, func() error { return s.Hub.Restart(t.Context()) }},
		"silent":  {freeze, s.Hub.Thaw},
	} {
		t.Run(name, func(t *testing.T) { survivesOutage(t, s, want, fault.begin, fault.end) })
	}

	web, err := s.StartWeb(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := web.Close(); err != nil {
			t.Error(err)
		}
	})
	if out, err := s.Hub.Lighter(t.Context(), "mirror", web.Dir, "python:latest"); err != nil ||
		!strings.Contains(out, "1 image ") {
		t.Fatalf("lighter mirror: output %q, error %v; want \"1 image \" in the output", out, err)
	}
	t.Run("mirror", func(t *testing.T) { takesOver(t, s, want, freeze) })
}

// survivesOutage runs readMuch in a container of python during an outage of the hub. The command
// must print want.
func survivesOutage(t *testing.T, s *site.Site, want string, begin func(), end func() error) {
	forget(t, s)
	hello := func() {
		t.Helper()
		if got := run(t, s, site.Lighter, "base", "echo", "hello"); got != "hello\n" {
			t.Errorf("a container of base prints %q, want hello", got)
		}
	}
	hello()
	got := during(t, s, func() {
		begin()
		wait := time.After(outage())
		dropCaches(t)
		hello() // needs only cached chunks
		<-wait
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	if got != want {
		t.Errorf("digest of python's files, read during the outage: got %q, want %q, as on overlayfs", got, want)
	}
}

// takesOver uses a mirror of python while the hub has crashed, then the restarted hub, and then the
// mirror again while the hub hangs.
func takesOver(t *testing.T, s *site.Site, want string, freeze func()) {
	if err := errors.Join(s.Machine.RemoveImage(t.Context(), site.Reference("base")),
		s.Machine.RemoveImage(t.Context(), site.Reference("python"))); err != nil {
		t.Fatal(err)
	}
	s.Hub.Kill()
	pull(t, s, site.Lighter, "python")
	hello := func() {
		t.Helper()
		forget(t, s)
		if got := run(t, s, site.Lighter, "python", "python3", "-c", "print('hello')"); got != "hello\n" {
			t.Errorf("a container of python prints %q, want hello", got)
		}
	}
	hello()
	st := sitetest.Status(t, s)
	if len(st.Images) != 1 || !st.Images[0].Lazy || st.Hubs[0].Up || !st.Hubs[1].Up {
		t.Errorf("after a pull without the hub: images %+v, hubs %+v; want one lazy image, the hub down, the mirror up",
			st.Images, st.Hubs)
	}
	pull(t, s, site.Lighter, "base") // the mirror has no such image, but its layer is one of python's
	if got := run(t, s, site.Lighter, "base", "echo", "hello"); got != "hello\n" {
		t.Errorf("a container of base prints %q, want hello", got)
	}
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := sitetest.Status(t, s).Hubs[0].Bytes
	until(t, s, "the hub's recovery", func(st report.Status) bool {
		hello() // one of its reads probes the hub
		return st.Hubs[0].Up
	})
	hello()
	if sitetest.Status(t, s).Hubs[0].Bytes == before {
		t.Error("the node has received no bytes from the restarted hub, want some")
	}

	forget(t, s)
	before = sitetest.Status(t, s).Hubs[1].Bytes
	got := during(t, s, freeze)
	if got != want || sitetest.Status(t, s).Hubs[1].Bytes == before {
		t.Errorf("digest of python's files, read while the hub hangs: got %q, want %q, as on overlayfs, "+
			"and bytes from the mirror: %+v", got, want, sitetest.Status(t, s).Hubs)
	}
	if err := s.Hub.Thaw(); err != nil {
		t.Error(err)
	}
}

// stallingProxy is a proxy between the node and its hub. It can stall requests for units.
type stallingProxy struct {
	mu        sync.Mutex      // guards requested and stalling
	requested map[string]bool // paths of the units that were requested before stalling was set
	stalling  bool            // requests for units that are not in requested are stalled

	released  chan struct{} // closed when stalled requests continue
	stalled   atomic.Int32  // number of requests that are stalled now
	cancelled atomic.Int32  // number of stalled requests that the node has cancelled
}

// serve starts the proxy, and returns its URL.
func (p *stallingProxy) serve(t *testing.T) string {
	t.Helper()
	address, end, err := site.Intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		p.wait(req)
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return address
}

// wait records a request for a unit, or stalls it until released is closed or the node cancels it.
func (p *stallingProxy) wait(req *http.Request) {
	if !strings.Contains(req.URL.Path, "/packs/") {
		return
	}
	p.mu.Lock()
	stall := p.stalling && !p.requested[req.URL.Path]
	if !p.stalling {
		p.requested[req.URL.Path] = true
	}
	p.mu.Unlock()
	if stall {
		p.stalled.Add(1)
		defer p.stalled.Add(-1)
		select {
		case <-p.released:
		case <-req.Context().Done():
			p.cancelled.Add(1)
		}
	}
}

// Hanging readers of one image do not delay readers of another image.
func TestStuckReadersDelayOnlyTheirImage(t *testing.T) {
	const readers = 29 // each reads one file of python
	p := &stallingProxy{requested: map[string]bool{}, released: make(chan struct{})}
	s := start(t, site.Options{Hubs: []string{p.serve(t)}})
	pull(t, s, site.Lighter, "base")
	run(t, s, site.Lighter, "base", reading("/usr")...) // so that the proxy never stalls units of these files
	want := run(t, s, site.Lighter, "base", reading("/usr/sbin")...)
	pull(t, s, site.Lighter, "python")
	forget(t, s) // the next run requests units of python's startup packs, before the proxy stalls requests
	find := "find /usr/lib/python3* /usr/local -type f -size +16k"
	if got := run(t, s, site.Lighter, "python", "sh", "-c",
		find+" | head -1; cat /dev/null; echo hello"); !strings.HasSuffix(got, "hello\n") {
		t.Fatalf("a container of python prints %q, want hello at the end", got)
	}
	forget(t, s)
	p.mu.Lock()
	p.stalling = true
	p.mu.Unlock()
	stuck := make(chan string)
	go func() {
		stuck <- run(t, s, site.Lighter, "python", "sh", "-c", fmt.Sprintf(
			"for f in $(%s | head -%d); do cat $f >/dev/null & done; wait; echo done", find, readers))
	}()
	for range 3000 {
		if p.stalled.Load() >= readers/2 { // several small files share a unit
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := p.stalled.Load(); n < readers/2 {
		t.Errorf("the proxy stalls %d requests, want at least %d", n, readers/2)
	}
	if got := run(t, s, site.Lighter, "base", reading("/usr/sbin")...); got != want {
		t.Errorf("digest of base's files, read while readers of python hang: got %q, want %q", got, want)
	}
	if n := p.cancelled.Load(); n > 0 {
		t.Errorf("%d of the stalled requests were cancelled before base had read its files, want none", n)
	}
	close(p.released)
	if got := <-stuck; got != "done\n" {
		t.Errorf("the hanging readers print %q after their requests continue, want done", got)
	}
}

// The hub refuses an image's locations during the pull. The node fetches them later, from a mirror.
// So a running container reads from the mirror when the hub is away, although a mirror cannot serve
// chunks by their ID.
func TestLocationsComeLater(t *testing.T) {
	var refused atomic.Int32
	address, end, err := site.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/locations/") {
			return false
		}
		if refused.Add(1)%2 == 0 {
			http.Error(w, "not today", http.StatusInternalServerError)
		} else {
			http.NotFound(w, req)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	s := start(t, site.Options{Hubs: []string{address, site.WebURL}})
	pull(t, s, site.Overlayfs, "python")
	want := run(t, s, site.Overlayfs, "python", readMuch...)
	pull(t, s, site.Lighter, "python")
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	located := filepath.Join(s.Machine.NodeRoot(), "trees", "*", "locations")
	if found, err := filepath.Glob(located); err != nil || len(found) > 0 || refused.Load() == 0 {
		t.Fatalf("the hub refused locations %d times, want at least once; the node's locations: %q (%v), want none",
			refused.Load(), found, err)
	}
	web, err := s.StartWeb(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := web.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Hub.Lighter(t.Context(), "mirror", web.Dir, "python:latest"); err != nil {
		t.Fatal(err)
	}
	s.Hub.Kill()
	forget(t, s)
	if got, err := c.Exec(t.Context(), readMuch...); err != nil || got != want {
		t.Errorf("digest of python's files, got from the mirror: %q, want %q, as on overlayfs (%v)", got, want, err)
	}
	if found, err := filepath.Glob(located); err != nil || len(found) != 1 {
		t.Errorf("locations on the disk: %q (%v), want one file", found, err)
	}
	mounts := sitetest.Status(t, s).Mounts
	if len(mounts) != 1 || mounts[0].Device.Failed > 0 {
		t.Fatalf("the node's mounts: %+v, want one, without failed reads", mounts)
	}
	if r := mounts[0].Device.Received; len(r) != 2 || r[address] == 0 || r[site.WebURL] < 10<<20 {
		t.Errorf("bytes received by origin: %v, want some from the hub, and at least 10 MiB from the mirror", r)
	}
}

// A hub keeps a mirror in a directory (--export), which nginx serves. While the hub is stopped, a
// pull is lazy and a container runs, both from the mirror.
func TestExportedMirrorServesPulls(t *testing.T) {
	dir := t.TempDir()
	s := start(t, site.Options{HubArgs: []string{"--export", dir}, Hubs: []string{site.HubURL, site.WebURL}})
	server, err := os.ReadFile("../../../deploy/nginx/mirror.conf")
	if err != nil {
		t.Fatal(err)
	}
	web, err := s.StartWebOf(t.Context(), dir, strings.NewReplacer("listen 8080", "listen "+site.WebAddress,
		"/srv/mirror", dir).Replace(string(server)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := web.Close(); err != nil {
			t.Error(err)
		}
	})
	mirrored := func(n int) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			if names, _ := filepath.Glob(dir + "/lighter/1/default/manifests/*"); len(names) == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("timeout: the mirror does not have %d images", n)
			}
		}
	}
	mirrored(2)
	s.Hub.Kill()
	pull(t, s, site.Lighter, "python")
	if got := run(t, s, site.Lighter, "python", "python3", "-c", "print('hello')"); got != "hello\n" {
		t.Errorf("a container of python prints %q, want hello", got)
	}
	st := sitetest.Status(t, s)
	if len(st.Images) != 1 || !st.Images[0].Lazy || st.Hubs[0].Up || !st.Hubs[1].Up {
		t.Errorf("after a pull without the hub: images %+v, hubs %+v; want one lazy image, the hub down, the mirror up",
			st.Images, st.Hubs)
	}
}
