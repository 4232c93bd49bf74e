package pull

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"lighter/sleep"
)

// ParseSource accepts what skopeo accepts, and returns the name that an image has by default.
func TestSourcesAreReadAsSkopeoDoes(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]string{
		"docker://alpine":                             "docker.io/library/alpine:latest",
		"docker://rootproject/root:6":                 "docker.io/rootproject/root:6",
		"docker://reg.example:5000/a/b":               "reg.example:5000/a/b:latest",
		"docker://localhost/a@" + digest:              "localhost/a@" + digest,
		"docker://registry.example/a/b:1@" + digest:   "registry.example/a/b:1@" + digest,
		"reg.example/a":                               "",
		"oci:/a":                                      "",
		"docker://reg.example/UPPER":                  "",
		"docker://reg.example/a:" + "tag with blanks": "",
	} {
		_, got, err := ParseSource(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: name %q, error %v, want name %q", text, got, err, want)
		}
	}
}

// A source that sends too few bytes in each window is given up after blobTries requests.
func TestSourceThatTricklesIsGivenUp(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-9/10")
		if req.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusPartialContent)
		}
		for req.Context().Err() == nil {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/a:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	client := &counting{next: server.Client().Transport}
	b := &blobReader{source: &Source{ref: ref, client: &http.Client{Transport: client}}, ctx: t.Context(),
		digest: "sha256:1", onRead: func(int) {},
		window: 10 * time.Millisecond, pauses: sleep.Backoff{First: time.Millisecond, Most: time.Second}}
	defer b.Close()
	for err == nil {
		_, err = b.Read(make([]byte, 100))
	}
	if !errors.Is(err, errStalled) || client.requests != blobTries {
		t.Errorf("after %d requests: error %v, want errStalled after %d", client.requests, err, blobTries)
	}
}

// counting counts requests on the client's side: a request that is given up may not reach the
// server.
type counting struct {
	next     http.RoundTripper
	requests int
}

// RoundTrip makes a request.
func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.requests++
	return c.next.RoundTrip(req)
}
