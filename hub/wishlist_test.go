package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/hub"
	"lighter/hub/wishlist"
	"lighter/wire"
)

// synced makes the hub read a list, and returns what it has made of it.
func (h *testHub) synced(name string, confirm bool) *wire.WishlistResult {
	h.t.Helper()
	j, err := h.client.SyncWishlist(h.t.Context(), name, confirm)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.awaited(j)
}

func (h *testHub) awaited(j wire.Job) *wire.WishlistResult {
	h.t.Helper()
	last, err := h.client.AwaitWishlist(h.t.Context(), j.N, silent)
	if err != nil || last.Wishlist == nil {
		h.t.Fatalf("wait for list %s: %+v, %v", j.Key, last, err)
	}
	return last.Wishlist
}

// The images of a wishlist that a user adds become ready. Its wrong lines are named. A tag that no
// line names any more goes, and the list's removal removes the rest, except what others want.
func TestWishlist(t *testing.T) {
	t.Parallel()
	h := startWants(t, func(c *hub.Config) { c.RetentionMaxPercent = 50 })
	r := startRegistry(t, image(lowerTar))
	r.tags = []string{"v1", "v2", "other"}
	host, _, _ := strings.Cut(r.name(), "/")
	j, err := h.client.AddWishlist(t.Context(), wire.Wishlist{Name: "physics", Text: fmt.Sprintf(
		"version: 1\nuser: me\ninput:\n- %s/a/b:v*\n- nonsense\n- http://%s/a/c:1\n", host, host)})
	if err != nil {
		t.Fatal(err)
	}
	got := h.awaited(j)
	if got.Images != 3 || got.Fetched != 3 || got.Failed != 1 || got.Problems[0].Line != 5 || len(got.Notes) != 1 {
		t.Errorf("a list with a wrong line: %+v, want 3 images, and a problem with line 5", got)
	}
	names := []string{host + "/a/b:v1", host + "/a/b:v2", host + "/a/c:1"}
	for _, name := range names {
		h.eventually(name+" is not ready", func() bool { return h.isReady(name, r.digest()) })
	}
	state, err := h.client.Wishlist(t.Context(), "physics")
	if err != nil || state.Wanted != 3 || state.Configured || len(state.Wants) != 3 || len(state.Last.Problems) != 1 {
		t.Errorf("the list: %+v, %v, want 3 images and a problem", state, err)
	}
	r.mu.Lock()
	r.tags = []string{"v1"}
	r.mu.Unlock()
	if got := h.synced("physics", false); got.Dropped != 1 || got.Unchanged != 2 {
		t.Errorf("after a tag has gone: %+v, want one image dropped", got)
	}
	h.eventually("the tag is still there", func() bool { return h.isMissing(names[1]) })
	h.added(wire.Add{Source: "docker://" + names[0]}) // a person wants it, too
	if err := h.client.RemoveWishlist(t.Context(), "physics"); err != nil {
		t.Fatal(err)
	}
	h.eventually("the images of a removed list are still there", func() bool { return h.isMissing(names[2]) })
	if !h.isReady(names[0], r.digest()) {
		t.Error("an image that a person has added has gone with a list")
	}
	if _, err := h.client.SyncWishlist(t.Context(), "physics", false); err == nil {
		t.Error("a removed list can be read")
	}
}

// A list of the configuration is read at its interval, without a request.
func TestWishlistAtItsInterval(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	c := hubConfig(t)
	c.Wishlists = []wishlist.List{{Name: "team", Images: []string{r.name()}, EveryMinutes: 60}}
	h := openHub(t, c)
	h.SetDueInterval(time.Millisecond)
	running := runHub(t, h)
	running.eventually("the image of the list is not ready",
		func() bool { return running.isReady(r.name(), r.digest()) })
}

// A list of the configuration is read from a URL that is fetched only if it has changed. While the
// URL fails, the last contents count, and nothing is dropped.
func TestConfiguredWishlist(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, image(lowerTar))
	host, _, _ := strings.Cut(r.name(), "/")
	var mu sync.Mutex
	var statuses []int
	broken := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		status := http.StatusOK
		if w.Header().Set("ETag", `"one"`); broken {
			status = http.StatusInternalServerError
		} else if req.Header.Get("If-None-Match") == `"one"` {
			status = http.StatusNotModified
		}
		statuses = append(statuses, status)
		if w.WriteHeader(status); status == http.StatusOK {
			fmt.Fprintf(w, "input: [%s/a:1]", host)
		}
	}))
	t.Cleanup(server.Close)
	h := startWants(t, func(c *hub.Config) {
		c.Wishlists = []wishlist.List{{Name: "team", URLs: []string{server.URL + "/list.yaml?token=secret"},
			EveryMinutes: 60}}
	})
	for range 2 {
		if got := h.synced("team", false); got.Images != 1 || got.Failed != 0 {
			t.Errorf("a list from a URL: %+v, want one image", got)
		}
	}
	mu.Lock()
	broken = true
	mu.Unlock()
	got := h.synced("team", true)
	if got.Complete || got.Images != 1 || got.Dropped != 0 || strings.Contains(fmt.Sprint(got.Problems), "secret") ||
		!strings.Contains(got.Problems[0].Why, "500") {
		t.Errorf("a list whose URL fails: %+v, want its last image, and a problem without the URL's query", got)
	}
	if got := fmt.Sprint(statuses); got != "[200 304 500]" {
		t.Errorf("answers to requests for the URL: %s, want [200 304 500]", got)
	}
	states, err := h.client.Wishlists(t.Context())
	if err != nil || len(states) != 1 || !states[0].Configured {
		t.Errorf("lists %+v, %v, want a configured one", states, err)
	}
	if err := h.client.RemoveWishlist(t.Context(), "team"); err == nil {
		t.Error("a configured list was removed")
	}
	for _, add := range []wire.Wishlist{{Name: "team", Images: []string{"a/b:1"}}, {Name: "x", File: "/etc/passwd"},
		{Name: "X Y", Images: []string{"a/b:1"}}, {Name: "x"}, {Name: "x", URLs: []string{"file:///etc/passwd"}},
		{Name: "x", Text: "version: 2"}} {
		if _, err := h.client.AddWishlist(t.Context(), add); err == nil {
			t.Errorf("list %+v was added", add)
		}
	}
}

// A list cannot make the hub read an address of its own network.
func TestWishlistReadsNoPrivateAddress(t *testing.T) {
	t.Parallel()
	h := startWants(t, func(c *hub.Config) { c.Registries = nil })
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a request has arrived")
	}))
	t.Cleanup(server.Close)
	j, err := h.client.AddWishlist(t.Context(), wire.Wishlist{Name: "x", URLs: []string{server.URL},
		Images: []string{strings.TrimPrefix(server.URL, "http://") + "/a:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.awaited(j); got.Failed != 2 || !strings.Contains(got.Problems[0].Why+got.Problems[1].Why,
		"not a public address") {
		t.Errorf("a list at a private address: %+v, want two problems", got)
	}
}
