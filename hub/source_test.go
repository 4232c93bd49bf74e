package hub_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/eventually"
	"lighter/test/testkit/tarball"
	"lighter/wire"
)

// fakeRegistry is another registry, with one image or index under the tag some/image:1.
type fakeRegistry struct {
	server   *httptest.Server
	user     string       // whose login is needed; empty: none
	password string       // of the user
	status   atomic.Int64 // of all answers; 0: as usual
	// spoil, if set, may answer a request for a blob with the bytes b. It reports whether it has.
	spoil    func(w http.ResponseWriter, req *http.Request, d digest.Digest, b []byte) bool
	manifest []byte // under the tag
	kind     string // media type of manifest
	blobs    map[digest.Digest][]byte
	parts    map[string]registryPart // manifests of an index, by digest

	mu    sync.Mutex
	asked map[string]int // number of GET requests, by last element of the path
	heads int            // number of HEAD requests for manifests
	gone  bool           // the registry has no manifest
	fails []int          // statuses of the next answers to requests for manifests; 200: the manifest
	tags  []string       // of all repositories
}

func startRegistry(t *testing.T, i fakeImage) *fakeRegistry {
	t.Helper()
	manifest, config, blobs := i.build()
	r := &fakeRegistry{kind: manifest.MediaType, blobs: map[digest.Digest][]byte{}, parts: map[string]registryPart{},
		asked: map[string]int{}}
	var err error
	if r.manifest, err = json.Marshal(manifest); err != nil {
		t.Fatal(err)
	}
	for _, b := range append(blobs, config) {
		r.blobs[digest.FromBytes(b)] = b
	}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

type registryPart struct {
	kind  string
	bytes []byte
}

// serveIndex makes the registry serve an index of images under its tag.
func (r *fakeRegistry) serveIndex(t *testing.T, parts ...part) (digests []digest.Digest) {
	t.Helper()
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	index.SchemaVersion = 2
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		if p.platform != nil && p.image.platform.OS == "" {
			p.image.platform = *p.platform
		}
		manifest, config, blobs := p.image.build()
		b, err := json.Marshal(manifest)
		if err != nil {
			t.Fatal(err)
		}
		for _, blob := range append(blobs, config) {
			r.blobs[digest.FromBytes(blob)] = blob
		}
		d := v1.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(b), Size: int64(len(b)),
			Platform: p.platform}
		r.parts[d.Digest.String()] = registryPart{manifest.MediaType, b}
		index.Manifests = append(index.Manifests, d)
		digests = append(digests, d.Digest)
	}
	b, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	r.kind, r.manifest = index.MediaType, b
	return digests
}

func (r *fakeRegistry) source() string {
	return "docker://" + strings.TrimPrefix(r.server.URL, "http://") + "/some/image:1"
}

// name returns the image's default name.
func (r *fakeRegistry) name() string { return strings.TrimPrefix(r.source(), "docker://") }

func (r *fakeRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if user, password, _ := req.BasicAuth(); r.user != "" && (user != r.user || password != r.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if status := r.status.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	parts := strings.Split(req.URL.Path, "/")
	last := parts[len(parts)-1]
	if status := r.count(req, last); status != http.StatusOK {
		w.WriteHeader(status)
		return
	}
	switch {
	case req.URL.Path == "/v2/":
	case last == "list":
		r.mu.Lock()
		defer r.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"tags": r.tags})
	case r.parts[last].bytes != nil:
		w.Header().Set("Content-Type", r.parts[last].kind)
		_, _ = w.Write(r.parts[last].bytes)
	case strings.Contains(req.URL.Path, "/manifests/"):
		kind, manifest := r.tagged()
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(manifest).String())
		_, _ = w.Write(manifest)
	case r.blob(last) != nil:
		b := r.blob(last)
		if r.spoil != nil && r.spoil(w, req, digest.Digest(last), b) {
			return
		}
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(b))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// count counts a request, and returns the status of its answer.
func (r *fakeRegistry) count(req *http.Request, last string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	isManifest := strings.Contains(req.URL.Path, "/manifests/")
	switch {
	case req.Method == http.MethodGet:
		r.asked[last]++
	case req.Method == http.MethodHead && isManifest:
		r.heads++
	}
	switch {
	case isManifest && len(r.fails) > 0:
		status := r.fails[0]
		r.fails = r.fails[1:]
		return status
	case isManifest && r.gone:
		return http.StatusNotFound
	}
	return http.StatusOK
}

// tagged returns the media type and the manifest under the tag.
func (r *fakeRegistry) tagged() (string, []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kind, r.manifest
}

func (r *fakeRegistry) blob(last string) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blobs[digest.Digest(last)]
}

func TestAddFromARegistry(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	r.user, r.password = "somebody", "secret"
	if _, err := h.add(wire.Add{Source: r.source()}); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("add without a password: %v, want an error with 401", err)
	}
	add := wire.Add{Source: r.source(), Username: "somebody", Password: "secret"}
	last, err := h.add(add)
	if err != nil || len(last.Images) != 1 || last.Images[0].State != wire.StateReady ||
		last.Images[0].Name != r.name() {
		t.Fatalf("added %+v, %v, want one ready image %s", last, err, r.name())
	}
	h.fetchTree(last.Images[0].Chain)
	// The hub's registry has it, under a name without a colon.
	ref, err := wire.ParseName(r.name())
	if err != nil || strings.Contains(ref.Repository, ":") {
		t.Fatalf("reference %+v, %v, want a repository without a colon", ref, err)
	}
	for path, want := range map[string][]byte{"manifests/1": r.manifest,
		"blobs/" + digest.FromBytes(gzipped(upperTar)).String(): gzipped(upperTar)} {
		if status, body, _ := h.do("GET", "/v2/"+ref.Repository+"/"+path, nil, "Accept", r.kind); status != 200 ||
			!bytes.Equal(body, want) {
			t.Errorf("%s: %d, %d bytes, want 200 and %d bytes", path, status, len(body), len(want))
		}
	}
	// When the image is added again, or under another name, no layer is downloaded again.
	r.asked = map[string]int{}
	for _, name := range []string{"", "mine:1"} {
		add.Name = name
		if last, err := h.add(add); err != nil || last.Images[0].State != wire.StateReady {
			t.Errorf("added again as %q: %+v, %v, want it ready", name, last, err)
		}
	}
	for d := range r.blobs {
		if n := r.asked[d.String()]; n > 0 && len(r.blobs[d]) > 1000 {
			t.Errorf("blob %s was requested %d more times, want none", d, n)
		}
	}
}

// After a broken connection, a download continues where it ended.
func TestAddResumesDownloads(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(lowerTar, upperTar))
	r.spoil = func(w http.ResponseWriter, req *http.Request, _ digest.Digest, b []byte) bool {
		var from int
		if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from); err != nil {
			from = 0
		}
		if len(b) < 10_000 || len(b)-from < 20_000 {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(b)-from))
		if from > 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(b)-1, len(b)))
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(b[from : from+40_000])
		return true // the server sees that bytes are missing, and breaks the connection
	}
	if last, err := h.add(wire.Add{Source: r.source()}); err != nil || last.Images[0].State != wire.StateReady {
		t.Fatalf("added %+v, %v, want it ready", last, err)
	}
}

// badSource makes a registry misbehave. want is a text that the error must mention.
type badSource struct {
	change  func(r *fakeRegistry)
	want    string
	noImage bool // the add fails before the hub knows an image
}

// badSources returns registries that misbehave, most of them with the blob spoilt.
func badSources(spoilt digest.Digest) map[string]badSource {
	answer := func(with func(b []byte) []byte) func(r *fakeRegistry) {
		return func(r *fakeRegistry) {
			r.spoil = func(w http.ResponseWriter, _ *http.Request, d digest.Digest, b []byte) bool {
				if d == spoilt {
					_, _ = w.Write(with(bytes.Clone(b)))
				}
				return d == spoilt
			}
		}
	}
	blob := "blob " + spoilt.String()
	return map[string]badSource{
		"corrupt": {answer(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), blob + " is corrupt", false},
		"short":   {answer(func(b []byte) []byte { return b[:1000] }), blob + " is truncated: 1000 of", false},
		"long":    {answer(func(b []byte) []byte { return append(b, 1) }), blob + " is longer than", false},
		"missing": {func(r *fakeRegistry) { delete(r.blobs, spoilt) }, "404", false},
		"no manifest": {func(r *fakeRegistry) { r.manifest, r.kind = []byte("<html>"), "text/html" }, "text/html",
			true},
		"half a one": {func(r *fakeRegistry) { r.manifest = r.manifest[:len(r.manifest)-1] },
			"unexpected end of JSON", true},
		"a huge one":     {func(r *fakeRegistry) { r.manifest = make([]byte, 5<<20) }, "longer than the limit", true},
		"config missing": {func(r *fakeRegistry) { dropConfig(r) }, "404", true},
	}
}

func TestAddFromBadSources(t *testing.T) {
	t.Parallel()
	h := startHub(t, small)
	before := h.holdings()
	for name, bad := range badSources(digest.FromBytes(gzipped(upperTar))) {
		r := startRegistry(t, image(lowerTar, upperTar))
		bad.change(r)
		_, err := h.add(wire.Add{Source: r.source(), Name: "bad:1"})
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: error %v, want it to mention %q", name, err, bad.want)
		}
		images := h.settled("bad:1")
		if bad.noImage != (len(images) == 0) || len(images) > 0 && images[0].State != wire.StateFailed {
			t.Errorf("%s: images %+v, want a failed one: %t", name, images, !bad.noImage)
		}
		h.unchanged(name, before)
		if len(images) > 0 {
			if status, _, _ := h.do("GET", "/v2/bad/manifests/1", nil); status != 404 {
				t.Errorf("%s: the manifest in the hub's registry: %d, want 404", name, status)
			}
			if err := h.client.Remove(t.Context(), "bad:1"); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := startRegistry(t, image(tarball.Of(tarball.File("a", noise(1, 30_000)))))
	if _, err := h.add(wire.Add{Source: r.source(), Name: "bad:1"}); err != nil {
		t.Errorf("a good image afterwards: %v", err)
	}
}

func dropConfig(r *fakeRegistry) {
	var m v1.Manifest
	if json.Unmarshal(r.manifest, &m) == nil {
		delete(r.blobs, m.Config.Digest)
	}
}

func TestInvalidSources(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	for source, want := range map[string]string{
		"oci:/somewhere":               "want docker://",
		"docker://":                    "invalid reference format",
		"docker://A/b":                 "could not parse reference",
		"docker://127.0.0.1:1/a:1":     "connection refused",
		"docker://localhost:1/a:1@bad": "invalid",
	} {
		if _, err := h.add(wire.Add{Source: source}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("add %s: %v, want an error with %q", source, err, want)
		}
	}
	if _, err := h.add(wire.Add{Name: "not/there:1"}); err == nil ||
		!strings.Contains(err.Error(), "not in the hub's registry") {
		t.Errorf("a missing name: %v, want an error", err)
	}
	if images := h.settled(""); len(images) != 0 {
		t.Errorf("images %+v, want none", images)
	}
}

// An added artifact that is no image is copied and stored.
func TestAddOfAnArtifact(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, fakeImage{layers: []fakeLayer{{blob: []byte("data"), mediaType: "text/plain"}},
		change: func(m *v1.Manifest) { m.ArtifactType = "application/vnd.example" }})
	last, err := h.add(wire.Add{Source: r.source(), Name: "artifact:1"})
	if err != nil || len(last.Images) != 1 || last.Images[0].State != wire.StateStored {
		t.Errorf("added %+v, %v, want it stored", last, err)
	}
	h.expect("/v2/artifact/blobs/"+digest.FromString("data").String(), http.StatusOK)
}

// While a job has the login of a user, no file of the hub has it as it was given, and no answer
// about the job has it.
func TestLoginsOfUsersAreSealed(t *testing.T) {
	t.Parallel()
	h := startHub(t)
	r := startRegistry(t, image(upperTar))
	r.user, r.password = "somebody", "5ecret-of-somebody"
	held, release := r.holdBlobs(t)
	added := h.adding(wire.Add{Source: r.source(), Name: "a:1", Username: r.user, Password: r.password})
	awaitHeld(t, held)
	var stored []byte
	// A read misses what SQLite moves at that moment from the log to the database.
	eventually.Holds(t, "the files have the job's source", func() bool {
		stored = contents(t, h.config.Root)
		return bytes.Contains(stored, []byte(r.source()))
	})
	status, body, _ := h.do("GET", base+"/jobs", nil)
	release()
	if err := <-added; err != nil {
		t.Error(err)
	}
	if status != 200 || !bytes.Contains(body, []byte("a:1")) {
		t.Errorf("jobs: %d %s, want the job of a:1", status, body)
	}
	if bytes.Contains(stored, []byte(r.password)) || bytes.Contains(body, []byte(r.password)) {
		t.Error("a file or an answer of the hub has the password")
	}
}

// contents returns the contents of all files below a directory.
func contents(t *testing.T, dir string) (all []byte) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, readErr := os.ReadFile(path)
			all, err = append(all, b...), readErr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
