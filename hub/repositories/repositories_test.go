package repositories

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// serve runs a registry, and returns a search in it.
func serve(t *testing.T, prefix string, answer http.HandlerFunc) *Search {
	t.Helper()
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	return New(strings.TrimPrefix(server.URL, "https://"), prefix, func(_ context.Context, scope string) (*http.Client,
		error) {
		return &http.Client{Transport: loggedIn{scope, server.Client().Transport}}, nil
	})
}

// loggedIn adds the scope of a login to requests, as their Authorization.
type loggedIn struct {
	scope string
	next  http.RoundTripper
}

func (l loggedIn) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", l.scope)
	return l.next.RoundTrip(req)
}

// all reads a search to its end.
func (s *Search) all(t *testing.T) (names, problems []string) {
	t.Helper()
	for s.More() {
		some, err := s.Next(t.Context())
		if err != nil {
			problems = append(problems, err.Error())
			s.Skip()
		}
		names = append(names, some...)
	}
	return names, problems
}

func check(t *testing.T, what string, s *Search, want []string, problems ...string) {
	t.Helper()
	got, failed := s.all(t)
	if !slices.Equal(got, want) {
		t.Errorf("%s: repositories %q, want %q", what, got, want)
	}
	if len(failed) != len(problems) {
		t.Errorf("%s: problems %q, want %d", what, failed, len(problems))
		return
	}
	for i, problem := range problems {
		if !strings.Contains(failed[i], problem) {
			t.Errorf("%s: problem %q, want %q", what, failed[i], problem)
		}
	}
}

// paged answers with a page of names, and links to the next one as distribution does.
func paged(w http.ResponseWriter, req *http.Request, names []string, size int) {
	first, _ := strconv.Atoi(req.URL.Query().Get("last"))
	last := min(first+size, len(names))
	if last < len(names) {
		w.Header().Set("Link", fmt.Sprintf(`</v2/_catalog?last=%d&n=%d>; rel="next"`, last, size))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"repositories": names[first:last]})
}

// All pages of a catalog are read. A prefix is a whole part of names.
func TestCatalog(t *testing.T) {
	names := []string{"other", "team", "team/a", "team/b/c", "teams/d"}
	answer := func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != catalogScope || req.URL.Path != "/v2/_catalog" {
			t.Errorf("request %s with %q, want one for the catalog", req.URL, req.Header.Get("Authorization"))
		}
		paged(w, req, names, 2)
	}
	check(t, "no prefix", serve(t, "", answer), names)
	check(t, "a prefix", serve(t, "team", answer), []string{"team", "team/a", "team/b/c"})
	check(t, "an empty catalog", serve(t, "", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"repositories": null}`))
	}), nil)
}

// A search ends, whatever the registry answers. What it has read until then counts.
func TestWrongAnswers(t *testing.T) {
	linked := func(link string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Link", "<"+link+`>; rel="next"`)
			_, _ = fmt.Fprintf(w, `{"repositories": ["page%s"]}`, req.URL.Query().Get("last"))
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
	}
	for what, c := range map[string]struct {
		answer  http.HandlerFunc
		want    []string
		problem string
	}{
		"a loop":             {linked("/v2/_catalog?last=1"), []string{"page", "page1"}, "its pages repeat"},
		"a URL with a comma": {linked("/v2/_catalog?last=1,2"), []string{"page", "page1,2"}, "its pages repeat"},
		"another host":       {linked("https://example.org/v2/_catalog"), []string{"page"}, "at another host, example"},
		"another path":       {linked("/v2/a/tags/list"), []string{"page"}, "at another path"},
		"no URL":             {linked("%zz"), []string{"page"}, "no URL"},
		"HTML":               {text("<html><body>hello"), nil, `"text/html; charset=utf-8" and begins with "<html>`},
		"other JSON":         {text(`{"errors": []}`), nil, "no list of names"},
		"a list":             {text(`["a"]`), nil, "no list of names"},
		"wrong names":        {text(`{"repositories": [1]}`), nil, "no list of names"},
		"an endless answer":  {text(strings.Repeat(" ", maxPage+1)), nil, "longer than 8 MiB"},
		"401":                {status(401), nil, "401 Unauthorized, and it is no Harbor"},
		"404":                {status(404), nil, "404 Not Found, and it is no Harbor"},
		"500":                {status(500), nil, "500 Internal Server Error"},
	} {
		check(t, what, serve(t, "", c.answer), c.want, c.problem)
	}
	pages := 0
	s := serve(t, "", func(w http.ResponseWriter, _ *http.Request) {
		pages++
		w.Header().Set("Link", fmt.Sprintf(`</v2/_catalog?last=%d>; rel="next"`, pages))
		_, _ = fmt.Fprint(w, `{"repositories": []}`)
	})
	check(t, "empty pages with other links", s, nil, "its pages repeat")
}

// A registry with very many names is read up to the bound.
func TestManyNames(t *testing.T) {
	pages := 0
	s := serve(t, "wanted", func(w http.ResponseWriter, _ *http.Request) {
		pages++
		names := make([]string, 50_000)
		for i := range names {
			names[i] = fmt.Sprintf("other/%d-%d", pages, i)
		}
		w.Header().Set("Link", fmt.Sprintf(`</v2/_catalog?last=%d>; rel="next"`, pages))
		_ = json.NewEncoder(w).Encode(map[string]any{"repositories": names})
	})
	check(t, "10 million names", s, nil, "more than 1000000 names")
	if want := maxNames/50_000 + 1; pages != want {
		t.Errorf("%d pages were read, want %d", pages, want)
	}
}

// harbor answers as Harbor's API is documented: with the projects and repositories that a user may
// see, in pages, and a catalog for nobody.
type harbor struct {
	t        *testing.T
	projects map[string]int // numbers of repositories
	refused  string         // a project
	noLinks  bool
}

func (h harbor) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.URL.Path == "/v2/_catalog":
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"unauthorized to list catalog"}]}`))
		return
	case req.URL.Path == "/api/v2.0/ping":
		_, _ = w.Write([]byte("Pong"))
		return
	case req.Header.Get("Authorization") != "":
		h.t.Errorf("GET %s with a token, want user and password", req.URL)
	}
	var names []string
	switch project, _ := strings.CutPrefix(req.URL.Path, "/api/v2.0/projects"); {
	case project == "":
		for name := range h.projects {
			names = append(names, name)
		}
		slices.Sort(names)
	default:
		project = strings.TrimSuffix(strings.Trim(project, "/"), "/repositories")
		if project == h.refused {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		for i := range h.projects[project] {
			names = append(names, fmt.Sprintf("%s/r%03d", project, i))
		}
	}
	h.page(w, req.URL, names)
}

// page answers with a page of names.
func (h harbor) page(w http.ResponseWriter, u *url.URL, names []string) {
	page, _ := strconv.Atoi(u.Query().Get("page"))
	size, _ := strconv.Atoi(u.Query().Get("page_size"))
	link := func(page int, rel string) string {
		return fmt.Sprintf(`<%s?page=%d&page_size=%d>; rel="%s"`, u.Path, page, size, rel)
	}
	var links []string
	if page > 1 {
		links = append(links, link(page-1, "prev"))
	}
	if page*size < len(names) {
		links = append(links, link(page+1, "next"))
	}
	if len(links) > 0 && !h.noLinks {
		w.Header().Set("Link", strings.Join(links, " , "))
	}
	w.Header().Set("X-Total-Count", strconv.Itoa(len(names)))
	type item struct {
		ID            int    `json:"id"`
		Name          string `json:"name"`
		ArtifactCount int    `json:"artifact_count"`
	}
	items := []item{}
	for i, name := range names[min(len(names), (page-1)*size):min(len(names), page*size)] {
		items = append(items, item{i, name, 1})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(items)
}

// The projects of a Harbor are listed if it refuses the catalog. A prefix needs one project only. A
// project that cannot be read is named, and the others are read.
func TestHarbor(t *testing.T) {
	var all, physics []string
	h := harbor{t: t, projects: map[string]int{}}
	for project, n := range map[string]int{"empty": 0, "library": 1, "physics": 250} {
		h.projects[project] = n
	}
	for i := range 250 {
		physics = append(physics, fmt.Sprintf("physics/r%03d", i))
	}
	all = append([]string{"library/r000"}, physics...)
	check(t, "all projects", serve(t, "", h.ServeHTTP), all)
	check(t, "a project", serve(t, "physics", h.ServeHTTP), physics)
	check(t, "a repository", serve(t, "physics/r001", h.ServeHTTP), []string{"physics/r001"})
	h.refused = "library"
	check(t, "a refused project", serve(t, "", h.ServeHTTP), physics,
		"projects/library/repositories?page=1&page_size=100: it answers 403")
	h.noLinks = true
	check(t, "no links", serve(t, "physics", h.ServeHTTP), physics[:100], "100 of 250 names, and no link")
}

// Many projects are read over many pages.
func TestManyProjects(t *testing.T) {
	h := harbor{t: t, projects: map[string]int{}}
	for i := range 230 {
		h.projects[fmt.Sprintf("p%03d", i)] = 1
	}
	if names, problems := serve(t, "", h.ServeHTTP).all(t); len(names) != 230 || len(problems) > 0 {
		t.Errorf("%d repositories and problems %q, want 230", len(names), problems)
	}
}
