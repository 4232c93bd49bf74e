package wishlist

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"lighter/hub/catalog"
	"lighter/hub/images"
	"lighter/hub/jobs"
	"lighter/hub/pull"
	"lighter/hub/registries"
	"lighter/hub/report"
	"lighter/hub/wants"
	"lighter/wire"
)

// tagged is a registry in which each repository has the same number of tags. All name one manifest.
type tagged struct {
	tags int
	mu   sync.Mutex
	got  map[string]int // number of requests: "HEAD manifests", …
	fail int            // status of the answers to HEAD requests; 0: they succeed
	hub  *stored

	repositories []string       // of the catalog
	listing      map[string]int // statuses of the answers to requests for tags, by repository; others succeed
	rests        int            // number of further answers 429 to GET requests
}

func (r *tagged) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	kind := "ping"
	if len(parts) > 2 {
		kind = parts[len(parts)-2]
	}
	r.mu.Lock()
	r.got[req.Method+" "+kind]++
	fail, repositories, status := r.fail, r.repositories, 0
	if kind == "tags" {
		status = r.listing[strings.Join(parts[1:len(parts)-2], "/")]
	}
	if kind == "tags" || kind == "ping" && len(parts) > 1 {
		if r.rests--; r.rests >= 0 {
			status = http.StatusTooManyRequests
		}
	}
	r.mu.Unlock()
	if status != 0 {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(status)
		return
	}
	if req.URL.Path == "/v2/_catalog" {
		_ = json.NewEncoder(w).Encode(map[string]any{"repositories": repositories})
		return
	}
	switch kind {
	case "tags":
		const most = 30
		first, _ := strconv.Atoi(req.URL.Query().Get("last"))
		var tags []string
		for i := first; i < min(first+most, r.tags); i++ {
			tags = append(tags, strconv.Itoa(i))
		}
		if first+most < r.tags {
			w.Header().Set("Link", fmt.Sprintf(`<%s?last=%d&n=%d>; rel="next"`, req.URL.Path, first+most, most))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tags": tags})
	case "manifests":
		if fail != 0 {
			w.WriteHeader(fail)
			return
		}
		w.Header().Set("Docker-Content-Digest", digest.FromString("manifest").String())
	}
}

func (r *tagged) requests() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = map[string]int{}
	return got
}

// stored is a hub that has each image as soon as it is to be fetched.
type stored struct {
	c    *catalog.Catalog
	mu   sync.Mutex
	busy int // number of further images for which the hub is too busy

	priority int64 // of the last image that was to be fetched
}

func (s *stored) Queue(ctx context.Context, f images.Fetch, _ *pull.Source) (string, error) {
	s.mu.Lock()
	s.priority = f.Priority
	isBusy := s.busy > 0
	s.busy--
	s.mu.Unlock()
	if isBusy {
		return "", report.ErrBusy
	}
	root := digest.FromString("manifest").String()
	image := catalog.Image{Root: root, Digest: root, State: wire.StateStored}
	_, err := s.c.NameBy(ctx, catalog.Lease{}, f.Name, []catalog.Image{image}, catalog.Job{Kind: "image", Key: f.Name})
	return root, err
}

// newTagged returns a service with a catalog of its own, and a registry.
func newTagged(t testing.TB, tags int) (*Service, *tagged, string) {
	t.Helper()
	c, err := catalog.Open(t.Context(), catalog.Place{Source: filepath.Join(t.TempDir(), "catalog.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &tagged{tags: tags, got: map[string]int{}, hub: &stored{c: c}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	log := slog.New(slog.DiscardHandler)
	local := registries.Registry{Reached: registries.Reached{Host: "127.0.0.1", Private: true}}
	others, err := registries.New([]registries.Registry{local}, log)
	if err != nil {
		t.Fatal(err)
	}
	queue := jobs.NewRunner().Queue(c.Jobs, "test", log)
	w := wants.New(wants.Config{Catalog: c, Images: r.hub, Log: log,
		Belongs: func(string) error { return nil },
		Source: func(ctx context.Context, repository string, plainHTTP bool) (*pull.Source, error) {
			ref, err := pull.ParseRepository(repository)
			if err != nil {
				return nil, err
			}
			return others.Open(ctx, ref, registries.Access{Own: true, PlainHTTP: plainHTTP})
		}}, queue)
	w.Confirm = 0
	s := New(Config{Catalog: c, Wants: w, MaxPercent: 50, Login: others.Client, ImageJobs: "image", Log: log}, queue)
	s.Rest = time.Millisecond
	return s, r, strings.TrimPrefix(server.URL, "http://")
}

// pass reads a list once.
func (s *Service) once(t testing.TB, l List, confirmed bool) wire.WishlistResult {
	t.Helper()
	p, err := s.newPass(t.Context(), l, &report.Progress{})
	if err == nil {
		err = p.do(t.Context(), confirmed)
	}
	if err == nil {
		err = p.end(t.Context(), &jobs.Running{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.result
}

// large returns a list that names 100 tags of each of some repositories: one a line, except those
// of the last repository, which lines with * name.
func large(host string, repositories int) List {
	l := List{Name: "large"}
	for repository := range repositories - 1 {
		for tag := range 100 {
			l.Images = append(l.Images, fmt.Sprintf("%s/some/image%d:%d", host, repository, tag))
		}
	}
	for range 100 {
		l.Images = append(l.Images, host+"/other/image:*")
	}
	return l
}

// A wishlist of 10,000 lines in which nothing is new costs one HEAD request a tag, however many
// lines name it. Only for lines with * the tags are listed, all pages once, and nothing else is
// fetched.
func TestNothingNewCostsOneHeadATag(t *testing.T) {
	s, r, host := newTagged(t, 100)
	const repositories, names = 10, 1000
	l := large(host, repositories)
	l.Images = slices.Repeat(l.Images, 10)
	if len(l.Images) != 10_000 {
		t.Fatalf("the list has %d lines, want 10,000", len(l.Images))
	}
	if got := s.once(t, l, false); got.Fetched != names || got.Failed != 0 {
		t.Fatalf("the first pass: %+v, want %d images fetched", got, names)
	}
	r.requests()
	if got := s.once(t, l, false); got.Unchanged != names || got.Fetched != 0 || got.Failed != 0 || got.Dropped != 0 {
		t.Errorf("the second pass: %+v, want %d unchanged images", got, names)
	}
	got := r.requests()
	// Each repository is logged in to once, and once more for the list of its tags.
	if got["HEAD manifests"] != names || got["GET tags"] != 4 || got["GET ping"] > repositories+1 || len(got) != 3 {
		t.Errorf("requests of a pass without news: %v, want %d HEAD, 4 pages of tags, and a login a repository",
			got, names)
	}
}

// Of 10,000 lines, every tenth is wrong. Each of these is named with its number and a reason, and
// all others are done.
func TestEveryTenthLineIsWrong(t *testing.T) {
	s, _, host := newTagged(t, 100)
	const lines, names = 10_000, 300
	text := "version: 1\ninput:\n"
	wrong := []string{"no host", "a.org/Upper:1", "a.org/b:*:*", "ftp://a.org/b:1", "a.org/*/b:1"}
	for i := range lines {
		if i%10 == 9 {
			text += fmt.Sprintf("- %q\n", wrong[i/10%len(wrong)])
		} else {
			text += fmt.Sprintf("- %s/r%d:%d\n", host, i%3, i%100)
		}
	}
	got := s.once(t, List{Name: "a", Text: text}, false)
	if got.Lines != lines || got.Failed != lines/10 || got.Images != got.Fetched || got.Images != names*9/10 {
		t.Errorf("%d lines: %d images, %d fetched, %d failed, want %d fetched and %d failed", got.Lines, got.Images,
			got.Fetched, got.Failed, names*9/10, lines/10)
	}
	for i, problem := range got.Problems {
		if problem.Line != int64(10*i+9+3) || problem.Why == "" {
			t.Errorf("problem %+v, want one with line %d", problem, 10*i+9+3)
		}
	}
}

// BenchmarkNothingNew measures a pass over 10,000 lines in which nothing is new.
func BenchmarkNothingNew(b *testing.B) {
	s, _, host := newTagged(b, 100)
	const repositories = 100
	l := large(host, repositories)
	s.once(b, l, false)
	for b.Loop() {
		s.once(b, l, false)
	}
}

// A list that has lost more than a share of its images loses none until that is confirmed. A list
// of tags that cannot be fetched, or a file that cannot be read, removes nothing.
func TestListsLoseLittleAtATime(t *testing.T) {
	s, r, host := newTagged(t, 10)
	file := filepath.Join(t.TempDir(), "gone.yaml")
	images := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%s/a:%d", host, i))
		}
		return all
	}
	check := func(what string, l List, confirmed bool, dropped, waiting, failed int64) {
		t.Helper()
		l.Name = "a"
		if got := s.once(t, l, confirmed); got.Dropped != dropped || got.Waiting != waiting || got.Failed != failed {
			t.Errorf("%s: %+v, want %d dropped, %d waiting, %d failed", what, got, dropped, waiting, failed)
		}
	}
	check("ten images", List{Images: images(10)}, false, 0, 0, 0)
	check("five of ten", List{Images: images(5)}, false, 5, 0, 0)
	check("two of five", List{Images: images(2)}, false, 0, 3, 0)
	check("a file that is gone", List{Images: images(2), File: file}, true, 0, 0, 1)
	r.tags = maxTags + 1
	check("too many tags", List{Images: append(images(2), host+"/b:1*")}, true, 0, 0, 1)
	check("two of five, confirmed", List{Images: images(2)}, true, 3, 0, 0)
	check("the same again", List{Images: images(2)}, false, 0, 0, 0)
}

// A registry that answers 429 rests, and a hub with too many images to fetch waits. Then the pass
// goes on. A registry that does not work is not asked for ever.
func TestPassesRest(t *testing.T) {
	l := func(host string) List { return List{Name: "a", Images: []string{host + "/a:*"}} }
	s, r, host := newTagged(t, 100)
	r.fail = http.StatusTooManyRequests
	if got := s.once(t, l(host), false); got.Failed != 100 ||
		!strings.Contains(got.Problems[0].Why, "too many requests") {
		t.Errorf("a registry that always answers 429: %+v, want 100 problems", got)
	}
	s, r, host = newTagged(t, 100)
	r.fail = http.StatusInternalServerError
	got := s.once(t, l(host), false)
	if heads := r.requests()["HEAD manifests"]; got.Failed != 100 || heads > maxFailures+looksAtOnce {
		t.Errorf("a registry that does not work: %d requests, %+v, want about %d", heads, got, maxFailures)
	}
	r.fail, r.hub.busy = 0, 7
	if got := s.once(t, l(host), false); got.Fetched != 100 || got.Failed != 0 {
		t.Errorf("a hub that is busy at first: %+v, want 100 images fetched", got)
	}
}
