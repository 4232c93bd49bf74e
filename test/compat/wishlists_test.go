package compat

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"lighter/test/testkit/example"
	"lighter/wire"
)

// The lists name a registry at which nothing listens, so that the examples need none.
var (
	wishes = wire.Wishlist{Name: "physics", Images: []string{"127.0.0.1:1/team/app:1", "nonsense"}, EveryMinutes: 60,
		Platforms: []string{"linux/amd64"}, ByRules: true, First: true}
	whole = wire.Wishlist{Name: "127.0.0.1:1/team", Registries: []string{"127.0.0.1:1/team"}, Tags: []string{"v*"},
		ExcludeTags: []string{"*-rc"}, Repositories: []string{"team/**"}, ExcludeRepositories: []string{"team/ci/*"}}
)

// speakOfWishlists sends a hub all kinds of requests about wishlists, and checks the answers.
func speakOfWishlists(t *testing.T, url string) {
	t.Helper()
	c := newClient(t, url)
	silent := func(wire.Progress) {}
	last, err := c.PlanWishlist(t.Context(), whole, silent)
	noError(t, err)
	if plan := last.Wishlist; plan == nil || plan.Failed != 1 || plan.Problems[0].Of != "registries" {
		t.Errorf("got plan %+v, want a problem with the registry", plan)
	}
	added, err := c.AddWishlist(t.Context(), wishes)
	noError(t, err)
	last, err = c.AwaitWishlist(t.Context(), added.N, silent)
	noError(t, err)
	if r := last.Wishlist; r == nil || r.Lines != 2 || r.Images != 1 || r.Failed != 2 || !r.Complete {
		t.Errorf("got result %+v, want one image and two problems", r)
	}
	synced, err := c.SyncWishlist(t.Context(), wishes.Name, true)
	noError(t, err)
	equal(t, "the job's key", synced.Key, wishes.Name)
	_, err = c.AwaitWishlist(t.Context(), synced.N, silent)
	noError(t, err)
	lists, err := c.Wishlists(t.Context())
	noError(t, err)
	if len(lists) != 1 || lists[0].Wanted != 1 || lists[0].Last == nil || lists[0].Configured {
		t.Errorf("got lists %+v, want one that wants an image", lists)
	}
	list, err := c.Wishlist(t.Context(), wishes.Name)
	noError(t, err)
	if equal(t, "the list", list.Wishlist, wishes); len(list.Wants) != 1 || len(list.Last.Problems) != 2 {
		t.Errorf("got list %+v, want one image and two problems", list)
	}
	noError(t, c.RemoveWishlist(t.Context(), wishes.Name))
}

// wishlistExchanges returns the requests of commands of an earlier version about wishlists, with
// the answers.
func wishlistExchanges(t *testing.T) (all []exchange) {
	t.Helper()
	decode(t, example.Stored(t, "wishlists-1.json", func() []byte {
		hub, stop := startHub(t, t.TempDir())
		defer stop()
		return encode(t, overheard(t, hub, speakOfWishlists))
	}), &all)
	return all
}

// TestWishlistCommandsOfToday gives commands of today the answers of a hub of an earlier version.
func TestWishlistCommandsOfToday(t *testing.T) {
	all := wishlistExchanges(t)
	next := 0
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if next == len(all) || all[next].Method != req.Method || all[next].Path != req.URL.RequestURI() {
			t.Errorf("%s %s: a hub of an earlier version was not asked this", req.Method, req.URL)
			http.NotFound(w, req)
			return
		}
		next++
		all[next-1].answer(w)
	}))
	defer hub.Close()
	speakOfWishlists(t, hub.URL)
}

// TestHubOfTodayKeepsWishlists sends the requests of commands of an earlier version to a hub of
// today. Its answers have all members of the earlier ones. Times and numbers of jobs differ.
func TestHubOfTodayKeepsWishlists(t *testing.T) {
	all := wishlistExchanges(t)
	hub, _ := startHub(t, t.TempDir())
	var job int64
	for _, x := range all {
		if path, _, ok := strings.Cut(x.Path, "?job="); ok {
			x.Path = path + "?job=" + strconv.FormatInt(job, 10)
		}
		got, what := x.repeat(t, hub)
		gotLast, wantLast := lastLine(t, got), lastLine(t, x)
		hasMembers(t, what, gotLast, wantLast)
		if answer, ok := gotLast.(map[string]any); ok && answer["job"] != nil {
			job = int64(answer["job"].(float64))
		}
	}
}

// lastLine returns the last line of an answer of JSON.
func lastLine(t *testing.T, x exchange) (v any) {
	t.Helper()
	text := strings.TrimSpace(x.Answer.Text + string(x.Answer.Body))
	if text == "" {
		return nil
	}
	noError(t, json.Unmarshal([]byte(text[strings.LastIndex(text, "\n")+1:]), &v))
	return v
}

// hasMembers checks that an answer has all members of an earlier one.
func hasMembers(t *testing.T, path string, got, want any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		object, _ := got.(map[string]any)
		for key, value := range want {
			if _, ok := object[key]; !ok {
				t.Errorf("%s: got no %q", path, key)
			}
			hasMembers(t, path+"."+key, object[key], value)
		}
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			t.Errorf("%s: got %d elements, want %d", path, len(list), len(want))
			return
		}
		for i := range want {
			hasMembers(t, path+"[]", list[i], want[i])
		}
	}
}
