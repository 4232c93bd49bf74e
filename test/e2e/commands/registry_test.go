//go:build e2e

package commands

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/go-digest"
)

func digestOfBytes(s string) string { return digest.FromString(s).String() }

// serve runs an HTTP server on an address of this machine, with or without TLS, until the test
// ends. It returns HOST:PORT.
func serve(t *testing.T, ip string, secure bool, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler,
		ErrorLog: log.New(io.Discard, "", 0)}}
	if secure {
		server.TLS = hubTrust.tls.Clone()
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return listener.Addr().String()
}

// fakeRegistry is a registry behind a handler of the test. The test itself uses the registry
// directly.
type fakeRegistry struct {
	host string       // HOST:PORT of the handler
	back http.Handler // the registry
	open string       // HOST:PORT of the registry
}

// startRegistry runs a registry until the test ends. guard makes the handler from the registry's
// own; nil: no other handler.
func startRegistry(t *testing.T, secure bool, guard func(next http.Handler) http.Handler) *fakeRegistry {
	t.Helper()
	r := &fakeRegistry{back: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	front := r.back
	if guard != nil {
		front = guard(front)
	}
	r.host, r.open = serve(t, "127.0.0.1", secure, front), serve(t, "127.0.0.1", false, r.back)
	return r
}

const (
	plainHTTP = false
	withTLS   = true
)

// push pushes an image or an index to the registry, with the tag 1.
func (r *fakeRegistry) push(t *testing.T, repository string, what any) {
	t.Helper()
	tag, err := name.NewTag(r.open + "/" + repository + ":1")
	if err != nil {
		t.Fatal(err)
	}
	if index, ok := what.(v1.ImageIndex); ok {
		err = remote.WriteIndex(tag, index)
	} else {
		err = remote.Write(tag, what.(v1.Image))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// witness is a handler that records requests and their credentials.
type witness struct {
	next http.Handler // answers the requests; nil: the answer is 404

	mu       sync.Mutex
	recorded []string // METHOD PATH AUTHORIZATION
}

func (w *witness) ServeHTTP(answer http.ResponseWriter, req *http.Request) {
	w.mu.Lock()
	w.recorded = append(w.recorded, req.Method+" "+req.URL.Path+" "+req.Header.Get("Authorization"))
	w.mu.Unlock()
	if w.next == nil {
		http.NotFound(answer, req)
		return
	}
	w.next.ServeHTTP(answer, req)
}

// requests returns the requests so far, each as METHOD PATH AUTHORIZATION.
func (w *witness) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.recorded
}

// wantBasic accepts only requests with the user and the password.
func wantBasic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user, password, _ := req.BasicAuth(); user != theUser || password != thePassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// wantBearer accepts only requests with a token, which clients get from realm.
func wantBearer(realm string) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Authorization") != "Bearer "+theRegistryToken {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, req)
		})
	}
}

// tokens answers with a token if the request has the user and password, or the identity token.
func tokens(w http.ResponseWriter, req *http.Request) {
	user, password, _ := req.BasicAuth()
	if !(user == theUser && password == thePassword) && req.FormValue("refresh_token") != theIdentityToken {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = io.WriteString(w, `{"token":"`+theRegistryToken+`","access_token":"`+theRegistryToken+`"}`)
}

// redirectBlobs redirects requests for blobs to another host. The new URL has a signature.
func redirectBlobs(to func() string) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.URL.Path, "/blobs/") {
				http.Redirect(w, req, to()+req.URL.Path+"?X-Signature="+theSignature, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, req)
		})
	}
}
