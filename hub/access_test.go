package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"lighter/wire"
	"lighter/wire/client"

	"lighter/hub"
)

const testToken = "a-token-of-the-administrators"

// tokenFile returns a file with the administrators' token.
func tokenFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(testToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// If everybody could reach and change a hub, it starts only if its configuration allows that. The
// error says in one line what to do.
func TestStrangersCannotChangeTheHub(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listen, admin, token string
		open, refused        bool
	}{
		{listen: "0.0.0.0:7070", refused: true},
		{listen: ":7070", refused: true},
		{listen: "[::]:7070", refused: true},
		{listen: "10.0.0.1:7070", refused: true},
		{listen: "0.0.0.0:7070", admin: "0.0.0.0:7071", refused: true},
		{listen: "127.0.0.1:7070", admin: "10.0.0.1:7071", refused: true},
		{listen: "127.0.0.1:7070"},
		{listen: "[::1]:7070"},
		{listen: "0.0.0.0:7070", admin: "unix:/run/admin.sock"},
		{listen: "0.0.0.0:7070", admin: "127.0.0.1:7071"},
		{listen: "0.0.0.0:7070", token: "/etc/lighter/token"},
		{listen: "0.0.0.0:7070", admin: "0.0.0.0:7071", token: "/etc/lighter/token"},
		{listen: "0.0.0.0:7070", open: true},
	} {
		config := hub.DefaultConfig()
		config.Listen, config.AdminListen, config.AdminTokenFile, config.Open = c.listen, c.admin, c.token, c.open
		config.PlainHTTP = true
		err := config.Check()
		if c.refused != (err != nil) {
			t.Errorf("%+v: %v, want an error: %t", c, err, c.refused)
		}
		if err != nil && (!strings.Contains(err.Error(), "set admin_token_file") ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v: error %v, want one line that says what to do", c, err)
		}
	}
}

// changing has requests that only administrators may make, with the status of the answer to an
// administrator.
var changing = map[string]int{
	"POST /lighter/1/default/images":                    400,
	"DELETE /lighter/1/default/images?name=a:1":         404,
	"POST /lighter/1/default/images/verify?name=a:1":    404,
	"POST /lighter/1/default/fsck":                      400,
	"POST /lighter/1/default/traces/import?name=a:1":    404,
	"DELETE /lighter/1/default/traces?name=a:1":         404,
	"POST /v2/a/blobs/uploads/":                         202,
	"PUT /v2/a/manifests/1":                             400,
	"DELETE /v2/a/manifests/sha256:" + noDigest:         404,
	"PATCH /v2/a/blobs/uploads/x?_state=y":              404,
	"POST /v2/a/blobs/uploads/?mount=x&from=elsewhere/": 202,
}

var noDigest = strings.Repeat("0", 64)

// If the hub has a token, changes need it, and requests of nodes do not.
func TestChangesNeedTheToken(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.AdminTokenFile = tokenFile(t) })
	basic := func(password string) string {
		req, _ := http.NewRequest("GET", "/", nil) // cannot fail
		req.SetBasicAuth("anybody", password)
		return req.Header.Get("Authorization")
	}
	for request, want := range changing {
		method, path, _ := strings.Cut(request, " ")
		for _, with := range []string{"", "Bearer " + testToken + "x", "Bearer", basic(""), basic("wrong"),
			"Token " + testToken} {
			status, body, header := h.do(method, path, []byte("{"), "Authorization", with, "Content-Type",
				"application/json")
			if status != http.StatusUnauthorized || !strings.HasPrefix(header.Get("WWW-Authenticate"), "Basic ") ||
				!strings.Contains(string(body), "token") {
				t.Errorf("%s with %q: %d %s, %v, want 401", request, with, status, body, header)
			}
		}
		for _, with := range []string{"Bearer " + testToken, "bearer " + testToken, basic(testToken)} {
			if status, body, _ := h.do(method, path, []byte("{"), "Authorization", with, "Content-Type",
				"application/json"); status == http.StatusUnauthorized || status == http.StatusForbidden {
				t.Errorf("%s with %q: %d %s, want %d", request, with, status, body, want)
			}
		}
	}
	trace := "/lighter/1/default/traces/" + noDigest
	for request, want := range map[string]int{"GET /lighter/1/default/images": 200,
		"HEAD /lighter/1/default/key": 200, "GET /v2/": 200, "POST " + trace: 404} {
		method, path, _ := strings.Cut(request, " ")
		if status, body, _ := h.do(method, path, nil); status != want {
			t.Errorf("%s without a token: %d %s, want %d", request, status, body, want)
		}
	}
	// Some registry clients look for the challenge only at /v2/.
	if _, _, header := h.do("GET", "/v2/", nil); header.Get("WWW-Authenticate") == "" {
		t.Error("/v2/ sends no challenge")
	}
}

// A client with the token can change the hub. Without it, the error says how to give it.
func TestClientsGiveTheToken(t *testing.T) {
	t.Parallel()
	file := tokenFile(t)
	h := startHub(t, func(c *hub.Config) { c.AdminTokenFile = file })
	if err := h.client.Remove(t.Context(), "a:1"); err == nil || !strings.Contains(err.Error(), "--token-file") {
		t.Errorf("remove an image without a token: %v, want an error that mentions --token-file", err)
	}
	client, err := client.New(client.Options{URL: h.url, TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Remove(t.Context(), "a:1"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("remove a missing image with the token: %v, want not found", err)
	}
	_, _, transport := client.Registry()
	req, err := http.NewRequest("POST", h.url+"/v2/a/blobs/uploads/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := transport.RoundTrip(req)
	if err != nil || res.StatusCode != http.StatusAccepted {
		t.Fatalf("a push with the token: %v, %v, want 202", res, err)
	}
	res.Body.Close()
}

// At an address for administrators, GET /v2/ needs the token: some registry clients send a password
// later only if /v2/ has asked for it.
func TestAdminAddressAsksForTheToken(t *testing.T) {
	t.Parallel()
	socket := hub.UnixPrefix + filepath.Join(t.TempDir(), "admin.sock")
	file := tokenFile(t)
	h := startHub(t, func(c *hub.Config) { c.AdminTokenFile, c.AdminListen = file, socket })
	if status, _, _ := h.do("POST", "/v2/a/blobs/uploads/", nil, "Authorization", "Bearer "+testToken); status != 403 {
		t.Errorf("a push at the public address: %d, want 403", status)
	}
	admin, err := client.New(client.Options{URL: socket}) // clients that can open the socket are administrators
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Remove(t.Context(), "a:1"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("remove a missing image at the socket: %v, want not found", err)
	}
	handler := h.AdminHandler()
	for with, want := range map[string]int{"": 401, "Bearer " + testToken: 200} {
		req, w := httptest.NewRequest("GET", "/v2/", nil), httptest.NewRecorder()
		req.Header.Set("Authorization", with)
		if handler.ServeHTTP(w, req); w.Code != want || w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("/v2/ with %q: %d, %v, want %d with a challenge", with, w.Code, w.Header(), want)
		}
	}
}

// Tokens that others can read or guess are refused.
func TestBadTokens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable":  {testToken, 0o604, "chmod"},
		"writable":  {testToken, 0o602, "chmod"},
		"empty":     {"\n", 0o600, "at least 16"},
		"short":     {"secret", 0o600, "at least 16"},
		"two lines": {testToken + "\n" + testToken, 0o600, "one line"},
		"a space":   {"a token of words, with spaces", 0o600, "one line"},
	} {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil { // the umask may have changed the mode
			t.Fatal(err)
		}
		config := hubConfig(t)
		config.AdminTokenFile = file
		if h, err := hub.Open(t.Context(), config, logOf(t)); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%s: error %v, want it to mention %q", name, err, c.want)
			if err == nil {
				_ = h.Close()
			}
		}
	}
}

// A web page in a developer's browser cannot change the hub on the developer's machine, neither by
// requests from another site nor by DNS rebinding.
func TestWebPagesChangeNothing(t *testing.T) {
	t.Parallel()
	h := startHub(t, func(c *hub.Config) { c.Names = []string{"hub.example.org"} })
	at := strings.TrimPrefix(h.url, "http://")
	_, port, _ := strings.Cut(at, ":")
	send := func(method, path, host string, header ...string) int {
		t.Helper()
		req, err := http.NewRequest(method, h.url+path, strings.NewReader("{"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	const json = "application/json"
	for request := range changing {
		method, path, _ := strings.Cut(request, " ")
		for _, origin := range []string{"https://evil.example.com", "http://127.0.0.1:1", "null"} {
			if status := send(method, path, at, "Origin", origin, "Content-Type", json); status != 403 {
				t.Errorf("%s from a page of %s: %d, want 403", request, origin, status)
			}
		}
		if status := send(method, path, at, "Sec-Fetch-Site", "cross-site", "Content-Type", json); status != 403 {
			t.Errorf("%s from a page of another site: %d, want 403", request, status)
		}
		for _, host := range []string{"evil.example.com", "evil.example.com:" + port, "localhost.example.com"} {
			if status := send(method, path, host, "Origin", "http://"+host, "Content-Type", json); status != 403 {
				t.Errorf("%s from a page whose name %s points to the hub: %d, want 403", request, host, status)
			}
		}
		for _, host := range []string{at, "localhost:" + port, "[::1]:" + port, "hub.example.org",
			"HUB.example.org:443"} {
			if status := send(method, path, host, "Content-Type", json); status == 403 {
				t.Errorf("%s at %s: %d, want it allowed", request, host, status)
			}
		}
	}
	// Browsers send forms without asking the other site first.
	for _, path := range []string{"/images", "/images/verify?name=a:1", "/fsck", "/traces/import?name=a:1"} {
		for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded",
			"multipart/form-data; boundary=x", ""} {
			if status := send("POST", "/lighter/1/default"+path, at, "Content-Type",
				kind); status != http.StatusUnsupportedMediaType {
				t.Errorf("POST %s of type %q: %d, want 415", path, kind, status)
			}
		}
	}
	// Nodes may use any name of the hub.
	for _, request := range []string{"GET /lighter/1/default/images",
		fmt.Sprintf("POST /lighter/1/default/traces/%s", noDigest)} {
		method, path, _ := strings.Cut(request, " ")
		if status := send(method, path, "any.example.com", "Content-Type", json); status == 403 {
			t.Errorf("%s at any.example.com: %d, want it allowed", request, status)
		}
	}
}

// A client that adds images cannot make the hub connect to other servers of the hub's own network
// than the configured registries, whatever host names, redirects and token servers it uses. The
// error says what to configure.
func TestSourcesInTheHubsNetwork(t *testing.T) {
	t.Parallel()
	const secret = "what the hub's network says of itself"
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, secret, http.StatusForbidden)
	}))
	defer inner.Close()
	var asked atomic.Int64
	counted := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer counted.Close()
	_, countedPort, _ := strings.Cut(strings.TrimPrefix(counted.URL, "http://"), ":")
	hidden := "http://localhost:" + countedPort + "/"
	// The registry redirects to another server, or names one for tokens.
	redirects := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v2/" {
			http.Redirect(w, req, hidden, http.StatusFound)
		}
	}))
	defer redirects.Close()
	realm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+hidden+`",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer realm.Close()
	var tokens *httptest.Server
	tokens = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/token" {
			_, _ = w.Write([]byte(`{"said": "` + secret + `"}`))
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+tokens.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer tokens.Close()
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }
	h := startHub(t, func(c *hub.Config) {
		c.Registries = registryTables(host(inner), host(redirects), host(realm), host(tokens))
	})
	for source, wants := range map[string][]string{
		"127.0.0.1:" + countedPort: {"127.0.0.1", "not a public address", `host = "127.0.0.1:` + countedPort},
		"localhost:" + countedPort: {"not a public address", `host = "localhost:` + countedPort},
		"[::1]:" + countedPort:     {`host = "[::1]:` + countedPort},
		"10.255.255.1:5000":        {"10.255.255.1", "not a public address"},
		"169.254.169.254":          {"169.254.169.254", "not a public address"},
		host(redirects):            {"not a public address", `host = "localhost:` + countedPort},
		host(realm):                {"not a public address", `host = "localhost:` + countedPort},
		host(inner):                {"403"},
		host(tokens):               {"no token"},
	} {
		_, err := h.add(wire.Add{Source: "docker://" + source + "/a/b:1", Name: "x:1", PlainHTTP: true})
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want it to mention %q", source, err, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error reveals the answer: %v", source, err)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("a server that is not configured got %d requests, want none", n)
	}
}
