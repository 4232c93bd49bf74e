package direct

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/durable"
	"lighter/format/chunk"
	"lighter/format/stargz"
	"lighter/node/resolver"
	"lighter/registries"
	"lighter/test/testkit/layout"
)

// registry serves the blobs of OCI layouts. It has all of them in all repositories.
type registry struct {
	*httptest.Server
	dirs []string

	mu     sync.Mutex // guards the following
	denies bool       // it denies all manifests
	whole  bool       // it ignores ranges
	login  string     // user:password that it wants; empty: none
	blobs  int        // that were requested
}

func startRegistry(t *testing.T, dirs ...string) *registry {
	t.Helper()
	r := &registry{dirs: dirs}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path, hex, found := strings.Cut(req.URL.Path, "sha256:")
	user, password, _ := req.BasicAuth()
	if r.whole {
		req.Header.Del("Range")
	}
	switch {
	case r.login != "" && user+":"+password != r.login:
		w.Header().Set("WWW-Authenticate", "Basic realm=x")
		w.WriteHeader(http.StatusUnauthorized)
		return
	case req.URL.Path == "/v2/":
		return
	case !found || strings.Contains(path, "referrers"):
		http.NotFound(w, req)
		return
	case r.denies && strings.Contains(path, "manifests"):
		w.WriteHeader(http.StatusForbidden)
		return
	case strings.Contains(path, "blobs"):
		r.blobs++
	default:
		w.Header().Set("Content-Type", v1.MediaTypeImageManifest)
	}
	w.Header().Set("Docker-Content-Digest", "sha256:"+hex)
	for _, dir := range r.dirs {
		if path := filepath.Join(dir, "blobs/sha256", hex); exists(path) {
			http.ServeFile(w, req, path)
			return
		}
	}
	http.NotFound(w, req)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// asked returns how many blobs were requested since the last call.
func (r *registry) asked() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, r.blobs = r.blobs, 0
	return n
}

// with changes the registry under its lock.
func (r *registry) with(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// request is the pull of the top layer of the image in a layout, from a repository.
func (r *registry) request(t *testing.T, dir, repository string) resolver.Request {
	t.Helper()
	var index v1.Index
	b, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(b, &index)
	}
	if err != nil {
		t.Fatal(err)
	}
	manifest := index.Manifests[0].Digest.String()
	return resolver.Request{Chain: chainIn(t, dir), Manifest: manifest, Pulled: manifest,
		Reference: strings.TrimPrefix(r.URL, "http://") + "/" + repository + ":1"}
}

// chainIn returns the top chain of the image in a layout.
func chainIn(t *testing.T, dir string) string {
	t.Helper()
	config, err := layout.Config(dir)
	if err != nil {
		t.Fatal(err)
	}
	return identity.ChainID(config.RootFS.DiffIDs).String()
}

// lazyImage makes a layout of an image with tables of contents, of layers with a file each.
func lazyImage(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join(dir, "empty")
	err := errors.Join(os.MkdirAll(filepath.Join(from, "blobs/sha256"), 0o700),
		layout.Write(from, v1.Manifest{}, v1.Image{RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}}}))
	for _, name := range files {
		next := filepath.Join(dir, name)
		err = errors.Join(err, layout.Extend(from, next, func(l *layout.Layer) error {
			return l.File(name, []byte(strings.Repeat(name, 1000)))
		}))
		from = next
	}
	lazy := filepath.Join(dir, "lazy")
	err = errors.Join(err, layout.Lazy(t.Context(), from, lazy, stargz.Options{Format: stargz.EStargz}))
	if err != nil {
		t.Fatal(err)
	}
	return lazy
}

// open opens images that believe all tables of a registry.
func (r *registry) open(t *testing.T) *Images {
	t.Helper()
	return r.openAt(t, t.TempDir(), registries.Registry{})
}

// openAt opens the images of a root. table is that of the registry.
func (r *registry) openAt(t *testing.T, root string, table registries.Registry) *Images {
	t.Helper()
	host := strings.TrimPrefix(r.URL, "http://")
	log := slog.New(slog.DiscardHandler)
	table.Host, table.Private, table.PlainHTTP = host, true, true
	all, err := registries.New([]registries.Registry{table}, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(Config{Root: root, Tables: []string{host + "/**"}, Registries: all,
		Leftovers: &durable.Leftovers{Log: log}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), all.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// An image is made once. A registry that no longer lets this node read it gets no statement signed.
func TestDeniedImage(t *testing.T) {
	dir := lazyImage(t, "a")
	r := startRegistry(t, dir)
	a := r.open(t).Answerer("tables")
	q := r.request(t, dir, "team/a")
	answer, err := a.Answer(t.Context(), q)
	if err != nil || r.asked() == 0 {
		t.Fatalf("answer %+v, error %v; want that the image is made", answer, err)
	}
	repository := strings.TrimSuffix(q.Reference, ":1")
	if want := "the tables of contents in " + repository; answer.Source != want {
		t.Errorf("source %q, want %q", answer.Source, want)
	}
	word, from := a.(*answerer).Made(answer.Image.Statement.Tree)
	if word != "tables" || !slices.Equal(from, []string{repository}) {
		t.Errorf("the tree is made of %q in %q", word, from)
	}
	if answer, err := a.Answer(t.Context(), q); err != nil || answer.Source == "" || r.asked() != 0 {
		t.Errorf("again: answer %+v, error %v; want the one that was kept", answer, err)
	}
	r.with(func() { r.denies = true })
	if answer, err := a.Answer(t.Context(), q); err == nil || answer != nil {
		t.Errorf("from a registry that denies access: answer %+v, error %v; want no answer", answer, err)
	}
}

// An answerer has the images that have one of its formats, and says what each format lacks.
func TestFormats(t *testing.T) {
	dir := lazyImage(t, "a")
	r := startRegistry(t, dir)
	m := r.open(t)
	q := r.request(t, dir, "team/a")
	if _, err := m.Answerer("soci").Answer(t.Context(), q); !errors.Is(err, chunk.ErrNotFound) ||
		err.Error() != "no SOCI index: nothing refers to the image" {
		t.Errorf("an image without an index: %v", err)
	}
	if _, err := m.Answerer("soci", "tables").Answer(t.Context(), q); err != nil {
		t.Errorf("an image with tables: %v", err)
	}
	if _, err := m.Answerer("soci").Answer(t.Context(), q); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("the answerer of another format has the image that was made: %v", err)
	}
	if _, err := m.Answerer("soci").Tree(t.Context(), q.Chain); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("the answerer of another format has its tree: %v", err)
	}
}

// The tree of lower layers is made once. It is that of an image of exactly these layers, too, which
// then is not made again. It is none of the image with more layers.
func TestTreeOfLowerLayers(t *testing.T) {
	lower, upper := lazyImage(t, "a"), lazyImage(t, "a", "b")
	if chainIn(t, lower) == chainIn(t, upper) {
		t.Fatal("the images are the same")
	}
	for name, order := range map[string][]string{"the upper image first": {upper, lower},
		"the lower image first": {lower, upper}} {
		t.Run(name, func(t *testing.T) {
			r := startRegistry(t, lower, upper)
			a := r.open(t).Answerer("tables")
			trees := map[string]chunk.ID{}
			for _, dir := range order {
				answer, err := a.Answer(t.Context(), r.request(t, dir, "team/a"))
				if err != nil {
					t.Fatal(err)
				}
				trees[dir] = answer.Image.Statement.Tree
				s, err := a.Tree(t.Context(), chainIn(t, lower))
				if err != nil {
					t.Fatal(err)
				}
				trees["lower"] = s.Tree
			}
			if trees["lower"] != trees[lower] || trees[lower] == trees[upper] {
				t.Errorf("trees %v, want one of the lower layers and one of the upper image", trees)
			}
			r.asked()
			for range 8 { // whichever kept image is found first
				for _, dir := range order {
					answer, err := a.Answer(t.Context(), r.request(t, dir, "team/a"))
					if err != nil || answer.Image.Statement.Tree != trees[dir] {
						t.Fatalf("again: answer %+v, error %v; want the same tree", answer, err)
					}
				}
				if s, err := a.Tree(t.Context(), chainIn(t, lower)); err != nil || s.Tree != trees[lower] {
					t.Fatalf("the tree of the lower layers again: %+v, %v", s, err)
				}
			}
			if n := r.asked(); n != 0 {
				t.Errorf("%d blobs were requested again, want none", n)
			}
		})
	}
}
