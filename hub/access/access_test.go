package access_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/hub/access"
)

const token = "0123456789abcdef0123456789abcdef"

func policy(t *testing.T, token string, names ...string) *access.Policy {
	t.Helper()
	file := ""
	if token != "" {
		file = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := access.New(file, names)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var passed = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

const (
	images  = "/lighter/1/default/images"
	trace   = "/lighter/1/default/traces/0000000000000000000000000000000000000000000000000000000000000000"
	held    = "/lighter/1/default/held"
	holders = "/lighter/1/default/holders"
)

// Each handler passes or refuses requests by method, path, host name and token.
func TestPolicy(t *testing.T) {
	open, closed := policy(t, "", "hub.example.org"), policy(t, token)
	for _, test := range []struct {
		handler      http.Handler
		method, path string
		host         string
		header       string // NAME: VALUE
		want         int
	}{
		// Reading, and reports of nodes.
		{open.ReadOnly(passed), "GET", images, "", "", 204},
		{open.ReadOnly(passed), "POST", trace, "", "", 204},
		{closed.Public(passed), "HEAD", "/v2/a/manifests/1", "", "", 204},
		{closed.Public(passed), "POST", trace, "", "", 204},
		{open.ReadOnly(passed), "POST", held, "", "", 204},
		{closed.Public(passed), "POST", held, "", "", 204},
		// Changes.
		{open.ReadOnly(passed), "POST", images, "", "", 403},
		{open.ReadOnly(passed), "PUT", "/v2/a/manifests/1", "", "", 403},
		{open.Public(passed), "POST", images, "127.0.0.1:7070", "", 204},
		{open.Public(passed), "POST", images, "[::1]", "", 204},
		{open.Public(passed), "DELETE", images, "localhost", "", 204},
		{open.Public(passed), "DELETE", images, "HUB.example.org:7070", "", 204},
		{open.Public(passed), "DELETE", images, "evil.example.org", "", 403},
		{closed.Public(passed), "POST", images, "", "", 401},
		{closed.Public(passed), "DELETE", held, "", "", 401},
		{closed.Public(passed), "POST", "/lighter/1/default/held/more", "", "", 401},
		{closed.Public(passed), "DELETE", holders, "", "", 401},
		// Names and addresses of machines.
		{open.ReadOnly(passed), "GET", holders, "", "", 403},
		{open.Public(passed), "GET", holders, "127.0.0.1:7070", "", 204},
		{open.Public(passed), "GET", holders, "evil.example.org", "", 403},
		{closed.Public(passed), "GET", holders, "", "", 401},
		{closed.Public(passed), "HEAD", holders, "", "", 401},
		{closed.Public(passed), "GET", "/lighter/1/default/events", "", "", 401},
		{closed.Public(passed), "GET", images + "/watch", "", "", 204},
		{closed.Public(passed), "GET", "/lighter/1/default/status/a:1.svg", "", "", 204},
		{closed.Public(passed), "GET", holders, "", "Authorization: Bearer " + token, 204},
		{closed.Public(passed), "POST", images, "", "Authorization: Bearer wrong", 401},
		{closed.Public(passed), "POST", images, "", "Authorization: Bearer " + token, 204},
		{closed.Public(passed), "PUT", "/v2/a/manifests/1", "", "Authorization: bearer " + token, 204},
		// Pages of other sites.
		{open.Public(passed), "POST", images, "127.0.0.1", "Sec-Fetch-Site: cross-site", 403},
		{closed.Public(passed), "POST", trace, "", "Sec-Fetch-Site: cross-site", 403},
		{open.Public(passed), "GET", images, "", "Sec-Fetch-Site: cross-site", 204},
		// Registry clients that look for a challenge at /v2/ only.
		{closed.Public(passed), "GET", "/v2/", "", "", 204},
		{closed.Admin(passed), "GET", "/v2/", "", "", 401},
		{closed.Admin(passed), "GET", "/v2/", "", "Authorization: Bearer " + token, 204},
		{open.Admin(passed), "GET", "/v2/", "", "", 204},
	} {
		req := httptest.NewRequest(test.method, test.path, nil)
		req.Host = test.host
		if name, value, ok := strings.Cut(test.header, ": "); ok {
			req.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		test.handler.ServeHTTP(w, req)
		if w.Code != test.want {
			t.Errorf("%s %s at %q with %q: %d %s, want %d", test.method, test.path, test.host, test.header, w.Code,
				w.Body, test.want)
		}
		if w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s %s: 401 without a challenge", test.method, test.path)
		}
	}
}

// A token file is refused if other users can read it, or if it has no token.
func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, mode := range map[string]os.FileMode{token: 0o644, "": 0o600} {
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := access.New(file, nil); err == nil {
			t.Errorf("a file of %d bytes with mode %v was accepted", len(text), mode)
		}
	}
	if _, err := access.New(file+".missing", nil); err == nil {
		t.Error("a missing file was accepted")
	}
}

// A hub without token and TLS passes requests that change something only under its own names.
func ExamplePolicy_Public() {
	policy, err := access.New("", []string{"hub.example.org"})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := policy.Public(passed)
	for _, host := range []string{"hub.example.org", "evil.example.org"} {
		req := httptest.NewRequest("DELETE", images+"?name=tools/shell:1", nil)
		req.Host = host
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		fmt.Println(host, w.Code)
	}
	// Output:
	// hub.example.org 204
	// evil.example.org 403
}
