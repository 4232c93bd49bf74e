package registry

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// While the storage fails, the answer to each request that needs it is 503 with Retry-After, so
// that clients try again. A client's mistake is no failure of the storage.
func TestAnswersWithoutTheStorage(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(t.Context(), Dir(dir), nil, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	config, layer := put(t, r, "a", []byte("{}")), put(t, r, "a", []byte("layer"))
	m := manifestOf(t, config, layer)
	if err := r.Repository("a").PutManifest(t.Context(), "1", m); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.Handler(&events{}))
	defer server.Close()
	do := func(method, path string, body []byte) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequest(method, server.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", m.MediaType)
		req.Header.Set("Accept", m.MediaType)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(text)
	}
	begun, _ := do("POST", "/v2/a/blobs/uploads/", nil)
	upload := begun.Header.Get("Location")[len(server.URL):]
	requests := []struct {
		method, path string
		body         []byte
		want         int // the status while the storage works
	}{
		{"GET", "/v2/a/blobs/" + layer.Digest.String(), nil, 200},
		{"HEAD", "/v2/a/blobs/" + layer.Digest.String(), nil, 200},
		{"GET", "/v2/a/manifests/1", nil, 200},
		{"HEAD", "/v2/a/manifests/1", nil, 200},
		{"GET", "/v2/a/manifests/" + m.Digest, nil, 200},
		{"HEAD", "/v2/a/manifests/" + m.Digest, nil, 200},
		{"GET", "/v2/a/tags/list", nil, 200},
		{"GET", "/v2/_catalog", nil, 200},
		{"GET", upload, nil, 204},
		{"PUT", "/v2/a/manifests/2", m.Bytes, 201},
		{"POST", "/v2/a/blobs/uploads/", nil, 202},
	}
	storage := filepath.Join(dir, "docker")
	// A file is where a directory has to be.
	if err := errors.Join(os.Rename(storage, storage+".away"), os.WriteFile(storage, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, q := range requests {
		res, text := do(q.method, q.path, q.body)
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" ||
			q.method != "HEAD" && !strings.Contains(text, `"UNAVAILABLE"`) {
			t.Errorf("%s %s: %s %v %s, want 503 with Retry-After", q.method, q.path, res.Status, res.Header, text)
		}
	}
	if res, _ := do("GET", "/v2/", nil); res.StatusCode != http.StatusOK {
		t.Errorf("GET /v2/: %s, want 200, as it needs no storage", res.Status)
	}
	if err := errors.Join(os.Remove(storage), os.Rename(storage+".away", storage)); err != nil {
		t.Fatal(err)
	}
	for _, q := range requests {
		if res, text := do(q.method, q.path, q.body); res.StatusCode != q.want {
			t.Errorf("%s %s, with the storage: %s %s, want %d", q.method, q.path, res.Status, text, q.want)
		}
	}
	// The library answers 500 if the type of the body is wrong.
	if res, text := do("PATCH", upload, []byte("x")); res.StatusCode != http.StatusInternalServerError {
		t.Errorf("a client's mistake: %s %s, want 500", res.Status, text)
	}
}
