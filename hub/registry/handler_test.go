package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Lists are paginated: vulnerability scanners and tools that copy registries read them page by
// page.
func TestListsArePaginated(t *testing.T) {
	r := openTest(t)
	for _, repository := range []string{"a/one", "b", "c"} {
		m := manifestOf(t, put(t, r, repository, []byte("{}")), put(t, r, repository, []byte("layer")))
		for _, tag := range []string{"1", "2", "3"} {
			if err := r.Repository(repository).PutManifest(t.Context(), tag, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	server := httptest.NewServer(r.Handler(&events{}))
	defer server.Close()
	list := func(path string) []string {
		t.Helper()
		var all []string
		for range 10 {
			res, err := http.Get(server.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			var answer struct{ Repositories, Tags []string }
			err = json.NewDecoder(res.Body).Decode(&answer)
			res.Body.Close()
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%s: got %s (%v), want 200 with a list", path, res.Status, err)
			}
			all = append(all, strings.Join(append(answer.Repositories, answer.Tags...), " "))
			link, _, more := strings.Cut(strings.TrimPrefix(res.Header.Get("Link"), "<"), ">")
			if !more {
				return all
			}
			path = strings.TrimPrefix(link, server.URL)
		}
		t.Fatalf("%s: got more than 10 pages: %q, want 10 at most", path, all)
		return nil
	}
	for path, want := range map[string][]string{
		"/v2/_catalog":             {"a/one b c"},
		"/v2/_catalog?n=2":         {"a/one b", "c"},
		"/v2/a/one/tags/list":      {"1 2 3"},
		"/v2/a/one/tags/list?n=2":  {"1 2", "3"},
		"/v2/b/tags/list?last=2":   {"3"},
		"/v2/_catalog?n=1&last=a/": {"a/one", "b", "c"},
	} {
		if got := list(path); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// A request about a repository is refused at once, before an upload for example, if
// REPOSITORY:TAG would not be a valid name of an image (wire.ParseName).
func TestInvalidRepositoriesAreRefused(t *testing.T) {
	r := openTest(t)
	server := httptest.NewServer(r.Handler(&events{}))
	defer server.Close()
	for path, want := range map[string]int{
		"POST /v2/localhost:5000/a/blobs/uploads/": http.StatusBadRequest,
		"POST /v2/UPPER/a/blobs/uploads/":          http.StatusBadRequest,
		"PUT /v2/localhost:5000/a/manifests/1":     http.StatusBadRequest,
		"GET /v2/UPPER/a/tags/list":                http.StatusBadRequest,
		"POST /v2/localhost_5000/a/blobs/uploads/": http.StatusAccepted,
		"POST /v2/manifests/tags/blobs/uploads/":   http.StatusAccepted,
	} {
		method, path, _ := strings.Cut(path, " ")
		req, err := http.NewRequest(method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != want ||
			want == http.StatusBadRequest && !bytes.Contains(body, []byte(`"NAME_INVALID"`)) {
			t.Errorf("%s %s: got %s, %s (%v), want %d", method, path, res.Status, body, err, want)
		}
	}
}

// A client's push of a manifest is accepted if and only if PutManifest accepts the manifest. The
// hub copies images with PutManifest.
func TestPushesAndCopiesAreCheckedAlike(t *testing.T) {
	r := openTest(t)
	server := httptest.NewServer(r.Handler(&events{}))
	defer server.Close()
	layer := put(t, r, "a", []byte("layer"))
	elsewhere := v1.Descriptor{MediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar",
		Digest: digest.FromString("foreign"), Size: 7, URLs: []string{"https://example.org/layer"}}
	absent := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.FromString("absent"), Size: 7}
	for name, c := range map[string]struct {
		layer v1.Descriptor
		good  bool
	}{"stored": {layer, true}, "foreign": {elsewhere, true}, "missing": {absent, false}} {
		m := manifestOf(t, put(t, r, "a", []byte("{}")), c.layer)
		copied := r.Repository("a").PutManifest(t.Context(), "1", m)
		req, err := http.NewRequest(http.MethodPut, server.URL+"/v2/a/manifests/1", bytes.NewReader(m.Bytes))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", m.MediaType)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if pushed := res.StatusCode == http.StatusCreated; pushed != c.good || (copied == nil) != c.good {
			t.Errorf("%s layer: push got %s, copy got %v, want both accepted: %t", name, res.Status, copied, c.good)
		}
	}
}

// slowBody is a body whose Reads block until ended is closed, and then fail. Each sends to begun
// first.
type slowBody struct{ begun, ended chan struct{} }

func (b *slowBody) Read([]byte) (int, error) {
	b.begun <- struct{}{}
	<-b.ended
	return 0, io.ErrUnexpectedEOF
}

// Concurrent pushes of manifests take a bounded number of bytes.
func TestConcurrentManifestsAreBounded(t *testing.T) {
	r := openTest(t)
	handler := r.Handler(&events{})
	const pushes = maxManifests / MaxManifest
	slow := &slowBody{make(chan struct{}, pushes), make(chan struct{})}
	put := func(ctx context.Context, body io.Reader, length int64) int {
		req := httptest.NewRequestWithContext(ctx, http.MethodPut, "/v2/a/manifests/1", body)
		req.ContentLength = length
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		return w.Code
	}
	over := make(chan int, pushes)
	for range pushes {
		go func() { over <- put(context.Background(), slow, MaxManifest) }()
	}
	for range pushes {
		<-slow.begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if code := put(ctx, strings.NewReader(strings.Repeat("x", MaxManifest)),
		MaxManifest); code != http.StatusServiceUnavailable {
		t.Errorf("push beyond the bound: got %d, want 503", code)
	}
	close(slow.ended)
	for range pushes {
		<-over
	}
	if code := put(t.Context(), strings.NewReader("{"), 1); code != http.StatusBadRequest {
		t.Errorf("push after the others have ended: got %d, want 400", code)
	}
}
