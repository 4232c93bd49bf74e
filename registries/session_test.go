package registries

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

const (
	secret = "p4ssw0rd-of-the-hub"
	blob   = "sha256:" + "0000000000000000000000000000000000000000000000000000000000000000"
)

// fake is a registry that wants a login, and its token server. It redirects blobs to another
// server.
type fake struct {
	*httptest.Server
	host      string
	basic     bool // logins without tokens
	life      int  // of tokens, seconds
	elsewhere *httptest.Server

	mu       sync.Mutex
	password string
	issued   int             // tokens
	valid    map[string]bool // credentials
	answer   func(http.ResponseWriter) bool
	asked    int // requests for manifests and blobs
	leaked   []string
}

func startFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{life: 300, password: secret, valid: map[string]bool{}}
	f.Server = httptest.NewServer(f)
	f.host = strings.TrimPrefix(f.URL, "http://")
	f.elsewhere = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.leaked = append(f.leaked, req.Header["Authorization"]...)
	}))
	t.Cleanup(f.Close)
	t.Cleanup(f.elsewhere.Close)
	return f
}

// ServeHTTP answers as a registry, and at /token as a token server.
func (f *fake) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, password, _ := req.BasicAuth()
	if req.URL.Path == "/token" {
		if password != f.password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		f.issued++
		token := fmt.Sprintf("token-%d", f.issued)
		f.valid["Bearer "+token] = true
		fmt.Fprintf(w, `{"token": %q, "expires_in": %d}`, token, f.life)
		return
	}
	if f.answer != nil && f.answer(w) {
		return
	}
	if strings.HasPrefix(req.URL.Path, "/api/") && password == f.password {
		return
	}
	if !f.valid[req.Header.Get("Authorization")] && !(f.basic && password == f.password) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="x"`)
		if f.basic {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		}
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if req.URL.Path != "/v2/" {
		f.asked++
		http.Redirect(w, req, f.elsewhere.URL, http.StatusTemporaryRedirect)
	}
}

// with changes the fake under its lock.
func (f *fake) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// loginFile writes a file as Docker's config.json, with one login.
func loginFile(t *testing.T, key, password string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	writeLogins(t, path, key, password)
	return path
}

func writeLogins(t *testing.T, path, key, password string) {
	t.Helper()
	text := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, key, base64.StdEncoding.EncodeToString([]byte("hub:"+password)))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// open returns the registries of tables.
func open(t *testing.T, tables ...Registry) *Registries {
	t.Helper()
	if err := Check(tables); err != nil {
		t.Fatal(err)
	}
	r, err := New(tables, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// reader reads a repository in a session.
type reader struct {
	*Session
	at string // URL of the repository
}

// logIn logs in to a repository with the login of its table.
func logIn(t *testing.T, r *Registries, repository string) (*reader, error) {
	t.Helper()
	return logInAs(t, r, repository, Access{Own: true})
}

func logInAs(t *testing.T, r *Registries, repository string, a Access) (*reader, error) {
	t.Helper()
	parsed, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Session(parsed, a)
	if err != nil {
		t.Fatal(err)
	}
	at := "https://" + parsed.RegistryStr() + "/v2/" + parsed.RepositoryStr()
	return &reader{s, at}, s.LogIn(t.Context())
}

// source logs in to a repository.
func source(t *testing.T, r *Registries, repository string) *reader {
	t.Helper()
	s, err := logIn(t, r, repository)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read requests something of the repository.
func (r *reader) read(t *testing.T, path string) ([]byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.at+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Client().Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, errors.New(res.Status)
	}
	return io.ReadAll(res.Body)
}

// has asks for a blob.
func has(t *testing.T, r *reader) error {
	t.Helper()
	_, err := r.read(t, "/blobs/"+blob)
	return err
}

// A source is logged in once, and again before its token expires, and once after it was refused.
// The credentials go along no redirect.
func TestSession(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	r := open(t, Registry{Host: "127.0.0.1", Private: true, Logins: loginFile(t, f.host, secret)})
	s := source(t, r, f.host+"/a/b")
	for range 3 {
		if err := has(t, source(t, r, f.host+"/a/b")); err != nil {
			t.Fatal(err)
		}
	}
	if f.issued != 1 {
		t.Errorf("%d tokens were issued, want 1", f.issued)
	}
	f.with(func() { clear(f.valid) })
	if err := has(t, s); err != nil || f.issued != 2 {
		t.Errorf("after the token was revoked: %v, %d tokens, want 2", err, f.issued)
	}
	f.with(func() { f.life = 1; clear(f.valid) })
	if err := has(t, s); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); f.issued < 4 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := has(t, s); err != nil {
			t.Fatal(err)
		}
	}
	if f.issued < 4 {
		t.Error("the token was not renewed before its end")
	}
	f.with(func() { f.password = "changed"; clear(f.valid) })
	before := f.issued
	if err := has(t, s); err == nil || !strings.Contains(err.Error(), "401") || f.issued != before {
		t.Errorf("with a wrong password: %v, want 401", err)
	}
	if len(f.leaked) > 0 {
		t.Errorf("the other server got credentials: %q", f.leaked)
	}
}

// A wrong login is an error that names the registry and no secret, and is an error again.
func TestWrongLogin(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	path := loginFile(t, f.host, "wr0ng-password")
	r := open(t, Registry{Host: f.host, Private: true, Logins: path})
	for range 2 {
		_, err := logIn(t, r, f.host+"/a")
		if err == nil || !strings.Contains(err.Error(), "log in to "+f.host) ||
			!strings.Contains(err.Error(), "check it in the table [[registry]]") ||
			strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want a line with the registry and without the password", err)
		}
	}
	writeLogins(t, path, f.host, secret+"\t") // has another size
	f.with(func() { f.password += "\t" })
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err = logIn(t, r, f.host+"/a"); err == nil {
			return
		}
	}
	t.Errorf("after the file was changed: %v", err)
}

// A user's login is used instead of that of the table, and the table's only if the caller says so.
func TestWhoseLogin(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	f.basic = true
	r := open(t, Registry{Host: "127.0.0.1", Private: true, Logins: loginFile(t, f.host, secret)})
	for _, own := range []bool{false, true} {
		for user, want := range map[string]bool{"": own, "wrong": own, secret: true} {
			a := Access{Own: own}
			if user != "" {
				a.Login.Username, a.Login.Password = "user", user
			}
			s, err := logInAs(t, r, f.host+"/a", a)
			if err == nil {
				err = has(t, s)
			}
			if (err == nil) != want {
				t.Errorf("own = %t, password %q: error %v, want none: %t", own, user, err, want)
			}
		}
	}
}

// The identity token of a login is not sent to another host.
func TestIdentityTokenIsNotRedirected(t *testing.T) {
	t.Parallel()
	var leaked bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked = true }))
	defer elsewhere.Close()
	var f *httptest.Server
	f = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/token" {
			to := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)
			http.Redirect(w, req, to, http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+f.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer f.Close()
	host := strings.TrimPrefix(f.URL, "http://")
	path := filepath.Join(t.TempDir(), "config.json")
	text := fmt.Appendf(nil, `{"auths": {%q: {"identitytoken": %q}}}`, host, secret)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, Registry{Host: "127.0.0.1", Private: true, Logins: path}, Registry{Host: "localhost", Private: true})
	_, err := logIn(t, r, host+"/a")
	if leaked || err == nil || !strings.Contains(err.Error(), "redirects the login") ||
		strings.Contains(err.Error(), secret) {
		t.Errorf("error %v, leaked %t, want an error about the redirect", err, leaked)
	}
}

// The hub's login is not sent without TLS, unless the configuration allows it.
func TestOwnLoginNeedsTLS(t *testing.T) {
	t.Parallel()
	s := &Session{onlyTLS: true, login: fixed{}}
	for _, c := range []struct {
		host      string
		plainHTTP bool
		want      bool
	}{{"r.example", false, false}, {"r.example", true, true}, {"127.0.0.1", false, true},
		{"localhost:5000", false, true}} {
		s.onlyTLS = !c.plainHTTP
		if err := s.mayLogIn(c.host, true); (err == nil) != c.want {
			t.Errorf("%s, plain HTTP allowed: %t: error %v, want none: %t", c.host, c.plainHTTP, err, c.want)
		}
		if err := s.mayLogIn(c.host, false); err != nil {
			t.Errorf("%s with TLS: %v", c.host, err)
		}
	}
}

// failing has a login, and an error after the login was refused.
type failing struct{}

func (failing) credentials(_ context.Context, _ string, afresh bool) (c credentials, err error) {
	if afresh {
		err = errors.New("the session has expired")
	}
	c.Username, c.Password = "hub", secret
	return c, err
}

// If the hub cannot log in again, the error says why.
func TestNoLoginAgain(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	f.basic = true
	r := open(t, Registry{Host: "127.0.0.1", Private: true})
	r.tableOf(f.host).login = failing{}
	s := source(t, r, f.host+"/a")
	if err := has(t, s); err != nil {
		t.Fatal(err)
	}
	f.with(func() { f.password = "changed" })
	if err := has(t, s); err == nil || !strings.Contains(err.Error(), "log in again: the session has expired") {
		t.Errorf("error %v, want one with the cause", err)
	}
}

// A client for another API than /v2/ sends user and password, and asks for no token. One for the
// catalog sends a token.
func TestClients(t *testing.T) {
	f := startFake(t)
	r := open(t, Registry{Host: f.host, Private: true, PlainHTTP: true, Logins: loginFile(t, f.host, secret)})
	for _, c := range []struct {
		scope, path string
		status      int
	}{
		{"", "/api/v2.0/projects", http.StatusOK}, {"", "/v2/", http.StatusUnauthorized},
		{"registry:catalog:*", "/v2/", http.StatusOK},
	} {
		s, err := r.RegistrySession(f.host, c.scope, false)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.Client().Get("https://" + f.host + c.path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if tokens := f.issued; res.StatusCode != c.status || (tokens > 0) != (c.scope != "") {
			t.Errorf("scope %q: GET %s: %s with %d tokens, want %d", c.scope, c.path, res.Status, tokens, c.status)
		}
	}
}

// A session logs in with its first request. If it cannot, the error names the registry.
func TestSessionLogsInByItself(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	for password, want := range map[string]string{secret: "", "wr0ng": "log in to " + f.host} {
		r := open(t, Registry{Host: "127.0.0.1", Private: true, Logins: loginFile(t, f.host, password)})
		parsed, err := name.NewRepository(f.host + "/a")
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Session(parsed, Access{Own: true})
		if err != nil {
			t.Fatal(err)
		}
		if s.Transfers() != nil {
			t.Error("a bound of transfers without one in the table")
		}
		err = has(t, &reader{s, "https://" + f.host + "/v2/a"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("password %s: error %v, want %q", password, err, want)
		}
	}
}
