//go:build e2e

package hub_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/hub/objects"
	"lighter/hub/registry"
	"lighter/test/testkit/postgres"
	"lighter/wire"
)

// While the bucket is away, clients of the hub's registry get 503 with Retry-After, never 404.
func TestRegistryWithoutTheBucket(t *testing.T) {
	t.Parallel()
	const (
		reachable int32 = iota
		overloaded
		cut
	)
	var state atomic.Int32
	c := refuseRequests(t, hubConfig(t), func(*http.Request) bool {
		now := state.Load()
		if now == cut {
			panic(http.ErrAbortHandler)
		}
		return now == overloaded
	})
	h := runHub(t, openHub(t, c))
	pushed := h.push("a:1", image(lowerTar))
	h.ready("a:1")
	h.idle()
	lower, _ := layerOf(lowerTar)
	paths := []string{"/v2/a/manifests/1", "/v2/a/manifests/" + pushed.String(), "/v2/a/blobs/" + lower.String()}
	for _, now := range []int32{overloaded, cut, reachable} {
		state.Store(now)
		for _, path := range paths {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				status, _, header := h.do(method, path, nil, "Accept", v1.MediaTypeImageManifest)
				switch {
				case now == reachable && status != http.StatusOK:
					t.Errorf("%s %s: %d, want 200", method, path, status)
				case now != reachable && (status != http.StatusServiceUnavailable || header.Get("Retry-After") == ""):
					t.Errorf("%s %s without the bucket (%d): %d %v, want 503 with Retry-After", method, path, now,
						status, header)
				}
			}
		}
	}
	if status, _, _ := h.do(http.MethodGet, "/v2/", nil); status != http.StatusOK {
		t.Errorf("GET /v2/: %d, want 200", status)
	}
}

// awayTime is how long the tests keep a store away: longer than the leases.
func awayTime() time.Duration {
	if soak {
		return time.Minute
	}
	return 2 * processLease
}

// While the database is away, objects in the bucket are served. Accepted images become ready when
// the database is back.
func TestDatabaseIsAway(t *testing.T) {
	t.Parallel()
	database := postgres.Start(t)
	c := hubConfig(t)
	c.Catalog = database.Database(t)
	p := startProcess(t, c)
	p.pushReady("before:1", image(upperTar))
	pack, err := chunk.ParseID(strings.TrimPrefix(firstWith(files(t, objectsDir(c)), "packs/"), "packs/"))
	if err != nil {
		t.Fatal(err)
	}
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	added := p.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	database.Kill()
	release()
	time.Sleep(awayTime())
	p.expect(wire.UnitPath(wire.DefaultDomain, chunk.Unit{Pack: pack}), http.StatusOK)
	if err := database.Run(); err != nil {
		t.Fatal(err)
	}
	if err := <-added; err != nil {
		t.Errorf("the client that waits for the image got %v, want no error", err)
	}
	p.wantReady("a:1", r.manifest)
	undisturbed := startProcess(t, hubConfig(t))
	undisturbed.pushReady("before:1", image(upperTar))
	if _, err := undisturbed.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil {
		t.Fatal(err)
	}
	p.idle()
	wantSame(t, p.testHub, undisturbed.testHub)
}

// A process whose database does not answer ends after SIGTERM. The next process completes its work.
func TestEndWithoutADatabase(t *testing.T) {
	t.Parallel()
	c := hubConfig(t)
	proxy := postgres.StartProxy(t, c.Catalog, func() bool { return false })
	through := c
	through.Catalog = proxy.Source
	p := startProcess(t, through)
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	added := p.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	proxy.Silence()
	p.signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the process has not ended after a minute")
	}
	<-added
	release()
	again := startProcess(t, c)
	again.wantReady("a:1", r.manifest)
}

// While the bucket is away, accepted images wait. They become ready when it is back.
func TestBucketIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	p := startProcess(t, refuseRequests(t, hubConfig(t), func(*http.Request) bool { return away.Load() }))
	r := startRegistry(t, image(lowerTar))
	held, release := r.holdBlobs(t)
	added := p.adding(wire.Add{Source: r.source(), Name: "a:1"})
	awaitHeld(t, held)
	away.Store(true)
	release()
	time.Sleep(awayTime())
	away.Store(false)
	if err := <-added; err != nil {
		t.Errorf("the client that waits for the image got %v, want no error", err)
	}
	p.wantReady("a:1", r.manifest)
	undisturbed := startProcess(t, hubConfig(t))
	if _, err := undisturbed.add(wire.Add{Source: r.source(), Name: "a:1"}); err != nil {
		t.Fatal(err)
	}
	p.idle()
	wantSame(t, p.testHub, undisturbed.testHub)
}

// While the bucket is away, a verification waits. An object that cannot be read from a bucket that
// answers is a problem of the image.
func TestVerificationWaitsForTheBucket(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex        // guards the following
	var from, refused string // parts of paths; see refuses
	away := false
	// The bucket is away as soon as a path has from in it. A path with refused in it is refused.
	refuses := func(req *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		away = away || from != "" && strings.Contains(req.URL.Path, from)
		return away || refused != "" && strings.Contains(req.URL.Path, refused)
	}
	set := func(newFrom, newRefused string) {
		mu.Lock()
		defer mu.Unlock()
		from, refused, away = newFrom, newRefused, false
	}
	p := startProcess(t, refuseRequests(t, hubConfig(t), refuses))
	p.pushReady("a:1", image(lowerTar, upperTar))
	p.idle()
	problems := func() string {
		found, err := p.client.Verify(t.Context(), "a:1", silent)
		if err != nil {
			t.Error(err)
		}
		return strings.Join(found.Problems, "\n")
	}
	for part, because := range map[string]error{
		"/_manifests/": registry.ErrUnavailable, "/layers/": objects.ErrUnavailable, "/packs/": objects.ErrUnavailable,
	} {
		set(part, "")
		done := make(chan string, 1)
		go func() { done <- problems() }()
		p.awaitRetry("verify", because)
		set("", "")
		if got := <-done; got != "" {
			t.Errorf("the bucket was away from a request with %s on: problems %s, want none", part, got)
		}
	}
	set("", "/packs/")
	if got := problems(); !strings.Contains(got, "unit ") || !strings.Contains(got, objects.ErrUnavailable.Error()) {
		t.Errorf("problems %s, want the units of packs that cannot be read", got)
	}
}
