package registries

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// The first request of a session without a login is sent at once. What the registry answers says
// whether it wants a login, and how.
func TestFirstRequest(t *testing.T) {
	content := bytes.Repeat([]byte("content"), 1<<20)
	for _, test := range []struct {
		what     string
		secure   bool
		answer   int // to a request without a token
		requests string
	}{
		{"open", false, http.StatusOK, "/v2/a/blobs/x 200, /v2/a/blobs/x 200"},
		{"open, with TLS", true, http.StatusOK, "/v2/a/blobs/x 200, /v2/a/blobs/x 200"},
		{"tokens for anybody", false, http.StatusUnauthorized,
			"/v2/a/blobs/x 401, /token 200, /v2/a/blobs/x 200, /v2/a/blobs/x 200"},
		{"tokens for anybody, with TLS", true, http.StatusUnauthorized,
			"/v2/a/blobs/x 401, /token 200, /v2/a/blobs/x 200, /v2/a/blobs/x 200"},
		{"forbidden without a token", true, http.StatusForbidden,
			"/v2/a/blobs/x 403, /v2/ 401, /token 200, /v2/a/blobs/x 200, /v2/a/blobs/x 200"},
	} {
		t.Run(test.what, func(t *testing.T) {
			var mu sync.Mutex
			var requests []string
			var server *httptest.Server
			handler := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				status := http.StatusOK
				switch {
				case req.URL.Path == "/token" || req.Header.Get("Authorization") == "Bearer t":
				case req.URL.Path == "/v2/" && test.answer != http.StatusOK:
					status = http.StatusUnauthorized
				default:
					status = test.answer
				}
				mu.Lock()
				requests = append(requests, fmt.Sprint(req.URL.Path, " ", status))
				mu.Unlock()
				if status == http.StatusUnauthorized {
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="x"`)
				}
				w.WriteHeader(status)
				switch {
				case status != http.StatusOK:
				case req.URL.Path == "/token":
					_, _ = io.WriteString(w, `{"token": "t"}`)
				default:
					_, _ = w.Write(content)
				}
			})
			if server = httptest.NewUnstartedServer(handler); test.secure {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			parsed, err := name.NewRepository(server.Listener.Addr().String() + "/a")
			if err != nil {
				t.Fatal(err)
			}
			r := open(t, Registry{Host: parsed.RegistryStr(), Private: true, PlainHTTP: !test.secure,
				CA: caOf(t, server)})
			s, err := r.Session(parsed, Access{Own: true})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				res, err := s.Client().Get("https://" + parsed.RegistryStr() + "/v2/a/blobs/x")
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(res.Body)
				if err := res.Body.Close(); err != nil {
					t.Error(err)
				}
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("got %s, %d bytes, error %v; want %d bytes", res.Status, len(got), err, len(content))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(requests, ", "); got != test.requests {
				t.Errorf("requests:\n%s, want\n%s", got, test.requests)
			}
		})
	}
}

// A server with TLS that is not trusted is not asked without TLS instead.
func TestFirstRequestToAnUntrustedServer(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	parsed, err := name.NewRepository(server.Listener.Addr().String() + "/a")
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, Registry{Host: parsed.RegistryStr(), Private: true, PlainHTTP: true})
	s, err := r.Session(parsed, Access{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.Client().Get("https://" + parsed.RegistryStr() + "/v2/a/blobs/x")
	if err == nil {
		_ = res.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, want an error about the certificate", err)
	}
}

// caOf returns a file with the certificate of a server, or nothing for one without TLS.
func caOf(t *testing.T, server *httptest.Server) string {
	t.Helper()
	if server.Certificate() == nil {
		return ""
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// servers answers requests by scheme and path, with a pause. Status 0 is no answer, and 1 that of a
// server without TLS to a request with TLS.
type servers struct {
	pauses   map[string]time.Duration
	answers  map[string]int // by SCHEME PATH
	mu       sync.Mutex
	requests []string
}

func (s *servers) RoundTrip(req *http.Request) (*http.Response, error) {
	which := req.URL.Scheme + " " + req.URL.Path
	select {
	case <-time.After(s.pauses[req.URL.Scheme]):
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch status := s.answers[which]; status {
	case 0:
		return nil, errors.New("no answer by " + which)
	case 1:
		return nil, http.ErrSchemeMismatch
	default:
		s.requests = append(s.requests, fmt.Sprint(req.Method, " ", which, " ", status))
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: req, Header: http.Header{}}, nil
	}
}

// If two servers answer, with and without TLS, the first answer says which one is the registry only
// if it is a registry's. Requests that change something are sent to one of them only.
func TestFirstRequestToTwoServers(t *testing.T) {
	const page, blob = "/v2/", "/v2/a/blobs/x"
	for what, test := range map[string]struct {
		method  string
		slow    time.Duration // with TLS
		answers map[string]int
		want    string // the last two requests for the blob
	}{
		"a slow registry, and a redirect to it": {http.MethodGet, 2 * secureTime, map[string]int{
			"https " + page: 200, "https " + blob: 200, "http " + page: 301, "http " + blob: 301},
			"GET https /v2/a/blobs/x 200, GET https /v2/a/blobs/x 200"},
		"another server has TLS": {http.MethodGet, 0, map[string]int{
			"https " + page: 404, "https " + blob: 404, "http " + page: 200, "http " + blob: 200},
			"GET http /v2/a/blobs/x 200, GET http /v2/a/blobs/x 200"},
		"no TLS on this port": {http.MethodGet, 0, map[string]int{
			"https " + page: 1, "https " + blob: 1, "http " + page: 200, "http " + blob: 400},
			"GET http /v2/a/blobs/x 400, GET http /v2/a/blobs/x 400"},
		"a change": {http.MethodDelete, 0, map[string]int{
			"https " + page: 200, "https " + blob: 202, "http " + page: 200, "http " + blob: 202},
			"DELETE https /v2/a/blobs/x 202, DELETE https /v2/a/blobs/x 202"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry, err := name.NewRegistry("registry.test", name.Insecure)
				if err != nil {
					t.Fatal(err)
				}
				to := &servers{pauses: map[string]time.Duration{"https": test.slow}, answers: test.answers}
				s := &Session{registry: registry, next: to, plainHTTP: true}
				for range 2 {
					req, err := http.NewRequestWithContext(t.Context(), test.method, "https://registry.test"+blob,
						http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					res, err := s.RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					_ = res.Body.Close() // empty
				}
				time.Sleep(time.Minute) // the library has timers
				to.mu.Lock()
				defer to.mu.Unlock()
				// A question for the page may still be under way at the end.
				blobs := slices.DeleteFunc(slices.Clone(to.requests), func(r string) bool {
					return !strings.Contains(r, blob)
				})
				last := blobs[max(0, len(blobs)-2):]
				if got := strings.Join(last, ", "); got != test.want {
					t.Errorf("got %s, want %s; all: %s", got, test.want, strings.Join(to.requests, ", "))
				}
				if n := strings.Count(strings.Join(to.requests, ", "), http.MethodDelete); n > 2 {
					t.Errorf("%d changes: %s", n, strings.Join(to.requests, ", "))
				}
			})
		})
	}
}
