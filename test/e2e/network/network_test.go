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
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// outage returns the duration of a hub's outage.
func outage() time.Duration {
	if os.Getenv("LIGHTER_SOAK") != "" {
		return time.Minute
	}
	return 3 * time.Second
}

// reading returns a command that reads all files below directories, and prints their digest.
func reading(dirs string) []string {
	return []string{"sh", "-c", "find " + dirs + " -xdev -type f -print0 | sort -z | xargs -0 cat | sha256sum"}
}

// much lists directories that a container reads during an outage.
var much = reading("/usr/lib /etc")

// start starts a site whose hub has the images base and python. Its link is slow, so that reads
// take a while.
func start(t *testing.T, options site.Options) *site.Site {
	t.Helper()
	var err error
	if options.Lighter, err = site.Binary(); err != nil {
		t.Fatal(err)
	}
	s, err := site.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(s.Machine.NodeLog()) // for information only
			t.Logf("the node's log:\n%s", log)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	work, err := site.Work()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base", "python"} {
		if err := errors.Join(s.Push(t.Context(), filepath.Join(work, "images", name), name),
			s.Hub.Add(t.Context(), name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func pull(t *testing.T, s *site.Site, snapshotter, name string) {
	t.Helper()
	if _, err := s.Machine.Pull(t.Context(), snapshotter, site.Reference(name)); err != nil {
		t.Fatal(err)
	}
}

// run runs a container, which must succeed, and returns its output.
func run(t *testing.T, s *site.Site, snapshotter, name string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ran, err := s.Machine.Run(ctx, snapshotter, site.Reference(name), argv...)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return ran.Output
}

func status(t *testing.T, s *site.Site) (st report.Status) {
	t.Helper()
	if err := s.Machine.NodeStatus(t.Context(), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// until waits until ok accepts the status.
func until(t *testing.T, s *site.Site, what string, ok func(report.Status) bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if ok(status(t, s)) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("timeout: waiting for %s: %+v", what, status(t, s))
}

// during runs a container that reads much of python, and calls fn meanwhile. It returns the
// container's output.
func during(t *testing.T, s *site.Site, fn func()) string {
	t.Helper()
	before := status(t, s).Fetched.Bytes
	said := make(chan string)
	go func() { said <- run(t, s, site.Lighter, "python", much...) }()
	until(t, s, "a fetch of some megabytes", func(st report.Status) bool { return st.Fetched.Bytes > before+4<<20 })
	fn()
	return <-said
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

// During a container's start the hub crashes or hangs for a while. The start takes longer, but does
// not fail, and cached images need no hub. A mirror on an ordinary web server makes pulls lazy
// without the hub, and takes over when the hub dies. The node uses the hub again when it is back.
func TestHubOutage(t *testing.T) {
	s := start(t, site.Options{Link: "300mbit", Hubs: []string{site.HubURL, site.WebURL}})
	pull(t, s, site.Overlayfs, "python")
	want := run(t, s, site.Overlayfs, "python", much...)
	pull(t, s, site.Lighter, "base")
	pull(t, s, site.Lighter, "python")
	freeze := func() {
		if err := s.Hub.Freeze(); err != nil {
			t.Error(err)
		}
	}
	for name, way := range map[string]struct {
		gone func()
		back func() error
	}{
		"crashed": {s.Hub.Kill, func() error { return s.Hub.Restart(t.Context()) }},
		"silent":  {freeze, s.Hub.Thaw},
	} {
		t.Run(name, func(t *testing.T) { survivesOutage(t, s, want, way.gone, way.back) })
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
		t.Fatalf("mirror: %q, %v", out, err)
	}
	t.Run("mirror", func(t *testing.T) { takesOver(t, s, want, freeze) })
}

func survivesOutage(t *testing.T, s *site.Site, want string, gone func(), back func() error) {
	forget(t, s)
	hello := func() {
		t.Helper()
		if got := run(t, s, site.Lighter, "base", "echo", "hello"); got != "hello\n" {
			t.Errorf("base prints %q", got)
		}
	}
	hello()
	got := during(t, s, func() {
		gone()
		wait := time.After(outage())
		dropCaches(t)
		hello() // needs only cached chunks
		<-wait
		if err := back(); err != nil {
			t.Error(err)
		}
	})
	if got != want {
		t.Errorf("python reads %q, on overlayfs %q", got, want)
	}
}

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
			t.Errorf("python prints %q", got)
		}
	}
	hello()
	st := status(t, s)
	if len(st.Images) != 1 || !st.Images[0].Lazy || st.Hubs[0].Up || !st.Hubs[1].Up {
		t.Errorf("without the hub: %+v, %+v", st.Images, st.Hubs)
	}
	pull(t, s, site.Lighter, "base") // the mirror has base only as a part of python
	if got := run(t, s, site.Lighter, "base", "echo", "hello"); got != "hello\n" {
		t.Errorf("base prints %q", got)
	}
	if err := s.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := status(t, s).Hubs[0].Bytes
	until(t, s, "the hub's recovery", func(st report.Status) bool {
		hello() // one of its reads probes the hub
		return st.Hubs[0].Up
	})
	hello()
	if status(t, s).Hubs[0].Bytes == before {
		t.Error("the hub is back, but the node does not use it")
	}

	forget(t, s)
	before = status(t, s).Hubs[1].Bytes
	got := during(t, s, freeze)
	if got != want || status(t, s).Hubs[1].Bytes == before {
		t.Errorf("with a hanging hub python reads %q, on overlayfs %q; %+v", got, want, status(t, s).Hubs)
	}
	if err := s.Hub.Thaw(); err != nil {
		t.Error(err)
	}
}

// middle is a proxy between the node and its hub that can stall requests for units.
type middle struct {
	mu    sync.Mutex
	seen  map[string]bool // requested units
	hold  bool            // stall units that were not requested before
	freed chan struct{}
	stuck atomic.Int32
	gone  atomic.Int32 // stalled requests that were cancelled
}

func (m *middle) serve(t *testing.T) string {
	t.Helper()
	address, end, err := site.Intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		m.wait(req)
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return address
}

func (m *middle) wait(req *http.Request) {
	if !strings.Contains(req.URL.Path, "/packs/") {
		return
	}
	m.mu.Lock()
	held := m.hold && !m.seen[req.URL.Path]
	if !m.hold {
		m.seen[req.URL.Path] = true
	}
	m.mu.Unlock()
	if held {
		m.stuck.Add(1)
		defer m.stuck.Add(-1)
		select {
		case <-m.freed:
		case <-req.Context().Done():
			m.gone.Add(1)
		}
	}
}

// Hanging readers of one image do not delay readers of another.
func TestStuckReadersDelayOnlyTheirImage(t *testing.T) {
	const readers = 29
	m := &middle{seen: map[string]bool{}, freed: make(chan struct{})}
	s := start(t, site.Options{Hubs: []string{m.serve(t)}})
	pull(t, s, site.Lighter, "base")
	run(t, s, site.Lighter, "base", reading("/usr")...) // all files that both images share
	want := run(t, s, site.Lighter, "base", reading("/usr/sbin")...)
	pull(t, s, site.Lighter, "python")
	forget(t, s) // shared files are now fetched in units of python's startup packs
	find := "find /usr/lib/python3* /usr/local -type f -size +16k"
	if got := run(t, s, site.Lighter, "python", "sh", "-c",
		find+" | head -1; cat /dev/null; echo hello"); !strings.HasSuffix(got, "hello\n") {
		t.Fatalf("python prints %q", got)
	}
	forget(t, s)
	m.mu.Lock()
	m.hold = true
	m.mu.Unlock()
	stuck := make(chan string)
	go func() {
		stuck <- run(t, s, site.Lighter, "python", "sh", "-c", fmt.Sprintf(
			"for f in $(%s | head -%d); do cat $f >/dev/null & done; wait; echo done", find, readers))
	}()
	for range 3000 {
		if m.stuck.Load() >= readers/2 { // several small files share a unit
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := m.stuck.Load(); n < readers/2 {
		t.Errorf("%d requests are stuck", n)
	}
	if got := run(t, s, site.Lighter, "base", reading("/usr/sbin")...); got != want {
		t.Errorf("base reads %q, before %q", got, want)
	}
	if n := m.gone.Load(); n > 0 {
		t.Errorf("base waited until %d of the stalled requests were cancelled", n)
	}
	close(m.freed)
	if got := <-stuck; got != "done\n" {
		t.Errorf("the stuck readers print %q", got)
	}
}

// A hub refuses an image's locations during the pull, and the node fetches them later. A running
// container then continues with a mirror, which cannot serve chunks by their ID.
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
	want := run(t, s, site.Overlayfs, "python", much...)
	pull(t, s, site.Lighter, "python")
	c, err := s.Machine.StartContainer(t.Context(), site.Lighter, site.Reference("python"), "sleep", "infinity")
	if err != nil {
		t.Fatal(err)
	}
	located := filepath.Join(s.Machine.NodeRoot(), "trees", "*", "locations")
	if found, err := filepath.Glob(located); err != nil || len(found) > 0 || refused.Load() == 0 {
		t.Fatalf("the hub refused locations %d times, and the node has %q (%v)", refused.Load(), found, err)
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
	if got, err := c.Exec(t.Context(), much...); err != nil || got != want {
		t.Errorf("python reads %q, on overlayfs %q (%v)", got, want, err)
	}
	if found, err := filepath.Glob(located); err != nil || len(found) != 1 {
		t.Errorf("the locations on the disk: %q (%v)", found, err)
	}
	mounts := status(t, s).Mounts
	if len(mounts) != 1 || mounts[0].Device.Failed > 0 {
		t.Fatalf("mounted: %+v", mounts)
	}
	if r := mounts[0].Device.Received; len(r) != 2 || r[address] == 0 || r[site.WebURL] < 10<<20 {
		t.Errorf("received: %v", r)
	}
}
