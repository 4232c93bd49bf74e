package registries

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

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
