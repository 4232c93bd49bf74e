package repository

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/registries"
	"lighter/store"
)

const (
	password = "p4ssw0rd-of-the-node"
	team     = "/team/image"
)

// fake is a registry for faults that a real one does not have. It wants a token, and redirects
// blobs to another server with a signed URL.
type fake struct {
	*httptest.Server
	host   string
	stores *httptest.Server // where blobs are
	blob   []byte
	d      v1.Descriptor // of blob

	mu        sync.Mutex
	issued    int                                            // tokens
	valid     map[string]bool                                // headers Authorization
	answer    func(http.ResponseWriter, *http.Request) bool  // instead of the registry, if it returns true
	give      func(w http.ResponseWriter, req *http.Request) // of the other server
	signature int                                            // that the other server takes
	asked     int                                            // requests to the registry, besides logins
	given     int                                            // requests to the other server
	leaked    []string                                       // headers Authorization at the other server
}

func startFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{valid: map[string]bool{}, blob: make([]byte, 300_000)}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(f.blob) // it never fails
	f.d = v1.Descriptor{Digest: digest.FromBytes(f.blob), Size: int64(len(f.blob))}
	f.give = f.serveBlob
	f.Server = httptest.NewServer(f)
	f.stores = httptest.NewServer(http.HandlerFunc(f.serveStore))
	f.host = strings.TrimPrefix(f.URL, "http://")
	t.Cleanup(f.Close)
	t.Cleanup(f.stores.Close)
	return f
}

// ServeHTTP answers as a registry, and at /token as a token server.
func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.URL.Path == "/token" {
		if _, given, _ := req.BasicAuth(); given != password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		f.issued++
		f.valid[fmt.Sprintf("Bearer token-%d", f.issued)] = true
		fmt.Fprintf(w, `{"token": "token-%d", "expires_in": 300}`, f.issued)
		return
	}
	if !f.valid[req.Header.Get("Authorization")] {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if req.URL.Path == "/v2/" {
		return
	}
	f.asked++
	if f.answer != nil && f.answer(w, req) {
		return
	}
	if req.URL.Path != "/v2"+team+"/blobs/"+f.d.Digest.String() {
		http.NotFound(w, req)
		return
	}
	f.signature++
	http.Redirect(w, req, fmt.Sprintf("%s/stored?signature=s1gned-%d", f.stores.URL, f.signature),
		http.StatusTemporaryRedirect)
}

func (f *fake) serveStore(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	f.given++
	f.leaked = append(f.leaked, req.Header["Authorization"]...)
	give := f.give
	f.mu.Unlock()
	give(w, req)
}

func (f *fake) serveBlob(w http.ResponseWriter, req *http.Request) {
	http.ServeContent(w, req, "", epoch, strings.NewReader(string(f.blob)))
}

// with changes the fake under its lock.
func (f *fake) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// counts returns how many requests the registry and the other server have got since the last call.
func (f *fake) counts() (asked, given int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked, given = f.asked, f.given
	f.asked, f.given = 0, 0
	return asked, given
}

// open opens the fake's repository with a login.
func (f *fake) open(t *testing.T) *Repository {
	t.Helper()
	return openAt(t, f.host, registries.Registry{Logins: loginFile(t, f.host, "node", password)})
}

func loginFile(t *testing.T, host, user, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + secret))
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, host, auth), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openAt opens a repository of a registry on this machine.
func openAt(t *testing.T, host string, table registries.Registry) *Repository {
	t.Helper()
	table.Host, table.Private = "127.0.0.1", true
	tables := []registries.Registry{table, {Host: "localhost", Private: true}}
	if err := registries.Check(tables); err != nil {
		t.Fatal(err)
	}
	all, err := registries.New(tables, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Close() })
	r, err := Open(all, host+team, registries.Access{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rangeOf reads a range.
func rangeOf(t *testing.T, r *Repository, d v1.Descriptor, offset, length int64) (b []byte, err error) {
	t.Helper()
	err = r.Range(t.Context(), d, offset, length, func(a store.Answer) (err error) {
		b, err = io.ReadAll(a.Body)
		return err
	})
	return b, err
}
