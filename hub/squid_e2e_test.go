//go:build e2e

package hub_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lighter/format/chunk"
	"lighter/hub"
	"lighter/store/origin"
	"lighter/test/testkit/port"
	"lighter/test/testkit/tarball"
	"lighter/wire"
	"lighter/wire/client"
)

// squid is a running Squid with the configuration in deploy/squid, in front of a hub.
type squid struct {
	url  string
	kill func()
}

// startSquid runs Debian's Squid until the test ends, with an empty cache on the disk.
func startSquid(t *testing.T, hubURL string) squid {
	t.Helper()
	// Squid gives up root's rights, and its user cannot search the test's own directories.
	dir, err := os.MkdirTemp("", "squid")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if out, err := exec.Command("chown", "proxy:proxy", dir).CombinedOutput(); err != nil {
		t.Fatalf("chown: %v: %s", err, out)
	}
	text, err := os.ReadFile("../deploy/squid/squid.conf")
	if err != nil {
		t.Fatal(err)
	}
	address, err := port.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	host, peer, err := net.SplitHostPort(strings.TrimPrefix(hubURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("http_port 8070 ", "http_port "+address+" ",
		"cache_peer hub.example.org parent 7070 ", "cache_peer "+host+" parent "+peer+" ",
		"/var/spool/squid 102400 64 256", dir+"/cache 100 1 4",
		"cache_mem 1024 MB", "cache_mem 64 MB").Replace(string(text))
	config += fmt.Sprintf("pid_filename none\ncache_log %[1]s/log\naccess_log stdio:%[1]s/access\n"+
		"coredump_dir none\nnetdb_filename none\n", dir)
	file := filepath.Join(dir, "squid.conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("squid", "-N", "-z", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("make Squid's cache (test/setup squid installs Squid): %v: %s", err, out)
	}
	cmd := exec.Command("squid", "-N", "-f", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := squid{url: "http://" + address, kill: func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}}
	t.Cleanup(func() {
		s.kill()
		if log, err := os.ReadFile(dir + "/log"); err == nil && t.Failed() {
			t.Logf("Squid's log:\n%s", log)
		}
	})
	for range 600 {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return s
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("Squid does not listen")
	return s
}

// requests returns how many requests with the status 200 the hub has answered at an endpoint.
func (h *testHub) requests(endpoint string) (n int64) {
	h.t.Helper()
	_, text, _ := h.do("GET", "/metrics", nil)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "lighter_hub_requests_total") && strings.Contains(line, `code="200"`) &&
			strings.Contains(line, `endpoint="`+endpoint+`"`) {
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " "):], &n)
		}
	}
	return n
}

// nodesBehind returns n nodes' clients of a Squid, and of the hub behind it.
func nodesBehind(t *testing.T, n int, urls ...string) (all []*origin.Failover) {
	t.Helper()
	var hubs []client.Options
	for _, u := range urls {
		hubs = append(hubs, client.Options{URL: u})
	}
	for range n {
		f, err := origin.New(slog.New(slog.DiscardHandler), hubs...)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// Twenty nodes behind Squid cost the hub the requests of one. A bit that Squid has flipped is
// found, and the node asks the hub. Without Squid, nodes go on with the hub. Squid passes no
// changes.
func TestSquid(t *testing.T) {
	const nodes = 20
	h := startHub(t, func(c *hub.Config) { c.Proxies = []string{"127.0.0.1"} })
	a := h.pushReady("a:1", image(tarball.Of(tarball.File("large", noise(1, 6<<20)))))
	b := h.pushReady("b:1", image(tarball.Of(tarball.File("large", noise(2, 1<<20)))))
	c := h.pushReady("c:1", image(tarball.Of(tarball.File("large", noise(3, 1<<20)))))
	var flip, flipped atomic.Bool
	hubURL, err := url.Parse(h.url)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(hubURL)
	forward.ModifyResponse = func(res *http.Response) error {
		body, err := io.ReadAll(res.Body)
		if flip.Load() && strings.Contains(res.Request.URL.Path, "/packs/") {
			body[len(body)/2] ^= 1
			flipped.Store(true)
		}
		res.Body = io.NopCloser(bytes.NewReader(body))
		return err
	}
	between := httptest.NewServer(forward)
	defer between.Close()
	cache := startSquid(t, between.URL)

	all := nodesBehind(t, nodes, cache.url, h.url)
	before := map[string]int64{}
	for _, endpoint := range []string{"packs", "indexes", "locations"} {
		before[endpoint] = h.requests(endpoint)
	}
	readAll := func(text string) {
		t.Helper()
		tree := treeOf(t, text)
		var group errgroup.Group
		for _, node := range all {
			group.Go(func() error { return readTree(t, node, tree, false) })
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	}
	readAll(a.Tree)
	through := map[string]int64{}
	for endpoint, was := range before {
		through[endpoint] = h.requests(endpoint) - was
	}
	units := h.unitsOf(originsOf(t, h.client), a.Tree) // a node asks for each of them once
	if want := map[string]int64{"packs": units, "indexes": 1, "locations": 1}; !maps.Equal(through, want) {
		t.Errorf("%d nodes behind Squid cost the hub the requests %v, want %v", nodes, through, want)
	}

	flip.Store(true)
	if err := readTree(t, all[0], treeOf(t, b.Tree), false); err != nil || !flipped.Load() {
		t.Errorf("with a flipped bit: %v, flipped: %t; want that the hub has the unit", err, flipped.Load())
	}
	flip.Store(false)

	if res, err := http.Post(cache.url+wire.Prefix+"/default/images", "application/json",
		strings.NewReader("{}")); err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("a change through Squid: %v, %v; want 403", res, err)
	}
	cache.kill()
	readAll(c.Tree)
}

// unitsOf returns the number of a tree's units.
func (h *testHub) unitsOf(from *origin.Failover, tree string) int64 {
	h.t.Helper()
	header, _, err := readTreeOf(h.t, from, treeOf(h.t, tree), false)
	if err != nil {
		h.t.Fatal(err)
	}
	units := map[chunk.Unit]bool{}
	if err := fetchLocations(h.t, from, header).Each(func(_ int64, u chunk.Unit) error {
		units[u] = true
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	return int64(len(units))
}
