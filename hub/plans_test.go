package hub_test

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"lighter/test/testkit/catalogtest"
)

// The numbers of images and jobs of a large hub.
const (
	largeImages = 1000
	largeJobs   = 100_000
)

const base = "/lighter/1/default"

// ran has the statements that a catalog has run for requests and for the hub's own work, each with
// the arguments of its first run.
type ran struct {
	mu             sync.Mutex
	requests, work map[string][]any
}

func (r *ran) add(ctx context.Context, statement string, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.work
	if ctx.Value(http.ServerContextKey) != nil {
		in = r.requests
	}
	if _, known := in[statement]; !known {
		in[statement] = args
	}
}

// take returns the statements since the last call.
func (r *ran) take() (requests, work map[string][]any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests, work = r.requests, r.work
	r.requests, r.work = map[string][]any{}, map[string][]any{}
	return requests, work
}

// requestsOf returns requests for each route, about a copy of an image. The value of a request is
// the tables that it may scan, because its answer has all their rows.
func requestsOf(chain string) map[string]string {
	chain = catalogtest.CopyOf(chain, 7)
	id, name := catalogtest.CopyID(7), "?name=fill/7:1"
	return map[string]string{
		"GET /key":                     "",
		"GET /chains/" + chain:         "",
		"GET /manifests/" + id:         "",
		"GET /soon/sha256:" + id:       "",
		"GET /trees/" + chain:          "",
		"GET /indexes/" + id:           "",
		"GET /locations/" + id:         "",
		"GET /packs/" + id + "/0":      "",
		"GET /chunks/" + id:            "",
		"POST /traces/" + id:           "",
		"GET /images":                  "images image_blobs statements trees image_sizes",
		"GET /images" + name:           "",
		"GET /images/inspect" + name:   "",
		"GET /images/watch?name=!":     "", // a watch does not end
		"GET /status/fill/7:1.json":    "",
		"GET /events":                  "events",
		"GET /events?dead=1":           "",
		"POST /events/retry":           "",
		"POST /images":                 "",
		"POST /images/verify" + name:   "",
		"DELETE /images?name=fill/8:1": "",
		"GET /jobs":                    "",
		"GET /jobs?ended=1":            "",
		"POST /jobs/cancel?job=7":      "",
		"POST /jobs/pause?job=7":       "",
		"POST /jobs/retry?job=7":       "",
		"GET /wishlists":               "wishlists",
		"GET /wishlists?name=none":     "",
		"POST /wishlists":              "",
		"POST /wishlists/sync?name=a":  "",
		"POST /wishlists/await?job=7":  "",
		"POST /wishlists/plan":         "",
		"DELETE /wishlists?name=none":  "",
		"GET /retention":               "images image_blobs statements trees image_sizes",
		"POST /retention":              "images image_blobs statements trees image_sizes",
		"GET /holders":                 "",
		"DELETE /holders?holder=none":  "",
		"POST /held":                   "",
		"GET /traces" + name:           "",
		"GET /traces/export" + name:    "",
		"POST /traces/import" + name:   "",
		"DELETE /traces" + name:        "",
	}
}

// workScans are the tables that the hub's own work may scan: to count the bytes that only one image
// has (Catalog.KeepSizes), and to know how many bytes startup packs may take. layouts has a row for
// each tree, and no index by the digest of its locations.
var workScans = strings.Fields("images image_blobs chains layers image_sizes packs layouts")

// No request makes the database scan a large table, unless the answer has all of the table's rows.
// The hub's own work scans only the tables of workScans.
func TestNoRequestScansATable(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	opened := openHub(t, hubConfig(t))
	r := &ran{requests: map[string][]any{}, work: map[string][]any{}}
	opened.Catalog().Observe(r.add)
	h := runHub(t, opened)
	a := h.pushReady("a:1", image(lowerTar, upperTar))
	h.await(h.extents(a.Tree).ID())
	h.idle()
	large, err := catalogtest.OpenLarge(cmp.Or(h.config.Catalog, filepath.Join(h.config.Root, "catalog.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if err := large.Fill(ctx, largeImages, largeJobs); err != nil {
		t.Fatal(err)
	}
	plans, err := large.Plans(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.take()
	h.pushReady("b:1", image(upperTar))
	h.idle()
	all, work := r.take()
	expectNoScan(t, plans, "a push", all)
	for request, scanned := range requestsOf(a.Chain) {
		method, path, _ := strings.Cut(request, " ")
		h.do(method, base+path, []byte(`{"name":"a:1"}`), "Content-Type", "application/json")
		statements, _ := r.take()
		expectNoScan(t, plans, request, statements, strings.Fields(scanned)...)
		for statement, args := range statements {
			all[statement] = args
		}
	}
	h.do("GET", "/metrics", nil)
	h.idle()
	_, more := r.take()
	expectNoScan(t, plans, "work", work, workScans...)
	expectNoScan(t, plans, "work", more, workScans...)
	expectRoutes(t)

	// The test notices a missing index: without it, the same statements scan more tables.
	before := scans(t, plans, all)
	for _, index := range []string{"jobs_ended", "image_blobs_chain", "chains_parent"} {
		if err := large.Execute(ctx, "DROP INDEX "+index); err != nil {
			t.Fatal(err)
		}
		after := scans(t, plans, all)
		if after <= before {
			t.Errorf("without index %s: %d scans, with it %d, want more without it",
				index, after, before)
		}
		before = after
	}
}

func scans(t *testing.T, p *catalogtest.Plans, ran map[string][]any) (n int) {
	t.Helper()
	for statement, args := range ran {
		tables, _, err := p.Scans(t.Context(), statement, args)
		if err != nil {
			t.Fatal(err)
		}
		n += len(tables)
	}
	return n
}

// expectNoScan checks that the plans of statements scan no tables but the excepted ones.
func expectNoScan(t *testing.T, p *catalogtest.Plans, what string, ran map[string][]any, excepted ...string) {
	t.Helper()
	for statement, args := range ran {
		tables, plan, err := p.Scans(t.Context(), statement, args)
		if err != nil {
			t.Error(err)
		}
		tables = slices.DeleteFunc(tables, func(table string) bool { return slices.Contains(excepted, table) })
		if len(tables) > 0 {
			t.Errorf("%s scans %s: %s\n%s", what, strings.Join(tables, ", "), statement, plan)
		}
	}
}

// expectRoutes checks that there is a request for each route of the API.
func expectRoutes(t *testing.T) {
	t.Helper()
	routes := regexp.MustCompile(`"(GET|POST|PUT|DELETE)", "(/[^"{]*)`)
	for _, file := range []string{"serve/serve.go", "admin/admin.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range routes.FindAllStringSubmatch(string(text), -1) {
			found := m[2] == "/fsck" || strings.HasPrefix(m[2], "/gc") // both read all rows
			for request := range requestsOf("") {
				found = found || strings.HasPrefix(request, m[1]+" "+m[2])
			}
			if !found {
				t.Errorf("the test has no request for the route %s %s of %s", m[1], m[2], file)
			}
		}
	}
}
