package wishlist

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"lighter/hub/catalog"
	"lighter/hub/jobs"
	"lighter/hub/report"
	"lighter/wire"
)

// whole returns a list of all images of a registry.
func whole(host string) List { return List{Name: "whole", Registries: []string{host}} }

// expect checks the numbers of a result.
func expect(t *testing.T, what string, got, want wire.WishlistResult) {
	t.Helper()
	if got.Found != want.Found || got.Images != want.Images || got.Fetched != want.Fetched ||
		got.Unchanged != want.Unchanged || got.Dropped != want.Dropped || got.Waiting != want.Waiting ||
		got.Failed != want.Failed {
		t.Errorf("%s:\n%+v, want\n%+v", what, got, want)
	}
}

// The images of all repositories of a registry are wanted, or of those that a prefix and patterns
// name. Those of tags and repositories that are gone are dropped.
func TestWholeRegistry(t *testing.T) {
	s, r, host := newTagged(t, 12)
	r.repositories = []string{"other", "team/a", "team/b", "team/ci/c"}
	l := whole(host)
	expect(t, "all", s.once(t, l, false), wire.WishlistResult{Found: 4, Images: 48, Fetched: 48})
	r.requests()
	expect(t, "again", s.once(t, l, false), wire.WishlistResult{Found: 4, Images: 48, Unchanged: 48})
	if got := r.requests(); got["HEAD manifests"] != 48 || got["GET tags"] != 4 || len(got) != 3 {
		t.Errorf("requests without news: %v, want 48 HEAD, 4 lists of tags, and logins with the catalog", got)
	}
	l.Registries = []string{host + "/team"}
	expect(t, "below a prefix", s.once(t, l, false),
		wire.WishlistResult{Found: 3, Images: 36, Unchanged: 36, Dropped: 12})
	l.ExcludeRepositories = []string{"team/ci/**"}
	expect(t, "without some", s.once(t, l, false),
		wire.WishlistResult{Found: 2, Images: 24, Unchanged: 24, Dropped: 12})
	l.Repositories, l.Tags, l.ExcludeTags = []string{"team/a", "nothing"}, []string{"1*", "2"}, []string{"*0"}
	expect(t, "a few tags", s.once(t, l, false),
		wire.WishlistResult{Found: 1, Images: 3, Unchanged: 3, Waiting: 21}) // 1, 2, 11
	expect(t, "confirmed", s.once(t, l, true), wire.WishlistResult{Found: 1, Images: 3, Unchanged: 3, Dropped: 21})
}

// Images of lists are fetched after all others, and those of lists that are first before those of
// other lists.
func TestPriority(t *testing.T) {
	s, r, host := newTagged(t, 1)
	s.once(t, List{Name: "a", Images: []string{host + "/a:0"}}, false)
	if r.hub.priority != jobs.Lowest {
		t.Errorf("priority %d, want %d", r.hub.priority, jobs.Lowest)
	}
	s.once(t, List{Name: "b", Images: []string{host + "/b:0"}, First: true}, false)
	if r.hub.priority != jobs.Low {
		t.Errorf("priority of a list that is first: %d, want %d", r.hub.priority, jobs.Low)
	}
}

// What a registry does wrong is named, and the rest is done. Unless all could be read, nothing is
// dropped.
func TestWrongRegistries(t *testing.T) {
	s, r, host := newTagged(t, 2)
	r.repositories = []string{"a", "b", "Wrong Name", "c:1", "..", "docker.io", ""}
	l := whole(host)
	l.Registries = append(l.Registries, "127.0.0.1:1")
	got := s.once(t, l, true)
	expect(t, "names and an address", got, wire.WishlistResult{Found: 3, Images: 6, Fetched: 6, Failed: 5})
	for i, want := range []string{"/:", "/..:", "/Wrong Name:", "/c:1:", "connection refused"} {
		problem := got.Problems[i]
		if text := problem.Text + ": " + problem.Why; !strings.Contains(text, want) || problem.Of != "registries" {
			t.Errorf("problem %d: %+v, want %q", i, problem, want)
		}
	}
	r.repositories = []string{"a", "c"}
	r.listing = map[string]int{"c": http.StatusForbidden}
	expect(t, "a repository that may not be read", s.once(t, whole(host), true),
		wire.WishlistResult{Found: 2, Images: 2, Unchanged: 2, Failed: 1})
	r.repositories = nil
	r.tags = 0
	expect(t, "an empty catalog", s.once(t, whole(host), false), wire.WishlistResult{Waiting: 6})
}

// A repository that has lost all tags may stay in a catalog. The registry is asked twice before its
// images are dropped.
func TestEmptiedRepository(t *testing.T) {
	s, r, host := newTagged(t, 2)
	r.repositories = []string{"a", "b", "c"}
	l := whole(host)
	s.once(t, l, false)
	r.listing = map[string]int{"c": http.StatusNotFound}
	r.requests()
	expect(t, "an emptied repository", s.once(t, l, false),
		wire.WishlistResult{Found: 3, Images: 4, Unchanged: 4, Dropped: 2})
	if got := r.requests()["GET tags"]; got != 4 {
		t.Errorf("%d requests for tags, want one for a and b, and two for c", got)
	}
	expect(t, "the same again", s.once(t, l, false), wire.WishlistResult{Found: 3, Images: 4, Unchanged: 4})
	if got := r.requests()["GET tags"]; got != 3 {
		t.Errorf("%d requests for tags, want one for each repository: nothing can be dropped", got)
	}
}

// A registry that answers 429 rests, and is then read to the end.
func TestRegistriesRest(t *testing.T) {
	s, r, host := newTagged(t, 2)
	r.repositories = []string{"a", "b", "c"}
	r.rests = 2
	s.Rest = 100 * time.Millisecond
	expect(t, "429", s.once(t, whole(host), false), wire.WishlistResult{Found: 3, Images: 6, Fetched: 6})
}

// A plan names the images that would be added and the numbers of others, and changes nothing.
func TestPlan(t *testing.T) {
	s, r, host := newTagged(t, 3)
	r.repositories = []string{"a", "b"}
	plan := func(w wire.Wishlist) wire.WishlistResult {
		t.Helper()
		got, err := s.Plan(t.Context(), w, func(wire.Progress) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return *got
	}
	l := whole(host)
	got := plan(wire.Wishlist(l))
	expect(t, "nothing is there", got, wire.WishlistResult{Found: 2, Images: 6, Fetched: 6})
	if len(got.New) != 6 || got.New[0] != host+"/a:0" {
		t.Errorf("new images %q, want six, the first of a", got.New)
	}
	if heads := r.requests()["HEAD manifests"]; heads != 0 {
		t.Errorf("%d requests HEAD, want none", heads)
	}
	if wanted, err := s.config.Catalog.Wants.Count(t.Context()); err != nil || len(wanted) > 0 {
		t.Errorf("wanted after a plan: %v, %v, want nothing", wanted, err)
	}
	l.Repositories = []string{"a"}
	s.once(t, l, false)
	l.Repositories = nil
	expect(t, "one repository is there", plan(wire.Wishlist(l)),
		wire.WishlistResult{Found: 2, Images: 6, Fetched: 3, Unchanged: 3})
	l.Tags = []string{"0", "1"}
	expect(t, "fewer tags", plan(wire.Wishlist(l)),
		wire.WishlistResult{Found: 2, Images: 4, Fetched: 2, Unchanged: 2, Dropped: 1})
	s.config.Lists = []List{l}
	expect(t, "a list of the hub", plan(wire.Wishlist{Name: l.Name}),
		wire.WishlistResult{Found: 2, Images: 4, Fetched: 2, Unchanged: 2, Dropped: 1})
	for _, w := range []wire.Wishlist{{Name: "none"}, {Name: "x", File: "/etc/passwd"},
		{Name: "x", Registries: []string{"a b"}}} {
		if _, err := s.Plan(t.Context(), w, nil); err == nil {
			t.Errorf("list %+v was planned", w)
		}
	}
	s.config.Lists = nil
	gone := errors.New("the client has gone")
	leave := func(wire.Progress) error { return gone }
	if _, err := s.Plan(t.Context(), wire.Wishlist(l), leave); !errors.Is(err, gone) {
		t.Errorf("a plan that nobody reads: %v, want %v", err, gone)
	}
	if !s.plans.TryAcquire(plansAtOnce) {
		t.Error("a plan has not ended")
	}
	if _, err := s.Plan(t.Context(), wire.Wishlist(l), nil); !errors.Is(err, report.ErrBusy) {
		t.Errorf("too many plans: %v, want %v", err, report.ErrBusy)
	}
}

// Lists of registries are checked when they are added.
func TestInvalidRegistries(t *testing.T) {
	for _, l := range []List{
		{Registries: []string{""}}, {Registries: []string{"registry"}}, {Registries: []string{"https://a.org"}},
		{Registries: []string{"a.org/b:1"}}, {Registries: []string{"docker.io"}},
		{Registries: []string{"docker.io/library"}}, {Registries: []string{"registry-1.docker.io/library"}},
		{Registries: []string{"a.org/B"}}, {Registries: []string{"a.org"}, Tags: []string{"a b"}},
		{Registries: []string{"a.org"}, Repositories: []string{"["}},
		{Images: []string{"a.org/b:1"}, Tags: []string{"a"}},
	} {
		if l.Name = "x"; l.Check() == nil {
			t.Errorf("list %+v is valid", l)
		}
	}
	for _, registry := range []string{"a.org", "a.org:5000/team/", "localhost", "127.0.0.1:5000/a/b", "[::1]:5000"} {
		if err := (List{Name: "x", Registries: []string{registry}}).Check(); err != nil {
			t.Errorf("registry %s: %v", registry, err)
		}
	}
}

// The pace is that of the jobs that ended one after the other while others waited.
func TestPace(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	job := func(created, ended int) catalog.Job {
		return catalog.Job{Kind: "image", State: wire.JobDone, Created: begin.Add(time.Duration(created) * time.Second),
			Updated: begin.Add(time.Duration(ended) * time.Second)}
	}
	var all []catalog.Job
	for i := range 12 {
		all = append([]catalog.Job{job(0, 7*i), {Kind: "other", State: wire.JobDone}}, all...)
	}
	all = append([]catalog.Job{job(1000, 1001)}, all...) // the hub had nothing to do for a while
	if got := pace(all, "image"); got != 7*time.Second {
		t.Errorf("pace %v, want 7s", got)
	}
	if got := pace(all[:10], "image"); got != 0 {
		t.Errorf("pace of a few jobs %v, want none", got)
	}
}
