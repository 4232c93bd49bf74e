//go:build e2e

package commands

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	theUser          = "somebody"
	thePassword      = "the-secret-password"
	theIdentityToken = "the-secret-identity-token"
	theRegistryToken = "the-secret-registry-token"
	theSignature     = "the-secret-signature"
)

// secrets returns the texts that must not be in the hub's files or log, or in the output of
// commands.
func secrets() []string {
	return []string{thePassword, theIdentityToken, theRegistryToken, theSignature,
		base64.StdEncoding.EncodeToString([]byte(theUser + ":" + thePassword))}
}

// dockerConfig writes a configuration of docker with a login for a host, and returns the
// environment of commands that use it.
func dockerConfig(t *testing.T, host string, login map[string]string) []string {
	t.Helper()
	dir := t.TempDir()
	b, err := json.Marshal(map[string]any{"auths": map[string]any{host: login}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"DOCKER_CONFIG=" + dir}
}

// password returns a login with user and password.
func password() map[string]string {
	return map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(theUser + ":" + thePassword))}
}

// wantNoSecret fails the test if a secret is in the hub's files or log, or in the output of
// commands.
func wantNoSecret(t *testing.T, outputs ...string) {
	t.Helper()
	outputs = append(outputs, good(t, lighter, "images", "--json"))
	search := func(where string, b []byte) {
		for _, secret := range secrets() {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s contains the secret %q", where, secret)
			}
		}
	}
	search("the output of commands", []byte(strings.Join(outputs, "\n")))
	files := 0
	err := filepath.WalkDir(filepath.Dir(hubRoot), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		search(path, b)
		files++
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("searched %d files of the hub (%v), want 10 at least", files, err)
	}
}

// The hub reads a private image with the credentials that docker's configuration has for the
// image's registry. No secret is in the hub's files or log, or in the output
// of commands.
func TestCredentialsOfDocker(t *testing.T) {
	tokenServer := &witness{next: http.HandlerFunc(tokens)}
	_, port, _ := strings.Cut(serve(t, "127.0.0.1", withTLS, tokenServer), ":")
	bearer := wantBearer("https://" + nearName + ":" + port + "/token")
	for what, c := range map[string]struct {
		guard  func(http.Handler) http.Handler
		login  map[string]string
		secure bool
		method string // of the request for a token; empty: none is sent
	}{
		"basic":          {wantBasic, password(), plainHTTP, ""},
		"basic-tls":      {wantBasic, password(), withTLS, ""},
		"bearer":         {bearer, password(), withTLS, "GET"},
		"identity-token": {bearer, map[string]string{"identitytoken": theIdentityToken}, withTLS, "POST"},
		"registry-token": {bearer, map[string]string{"registrytoken": theRegistryToken}, withTLS, ""},
	} {
		t.Run(what, func(t *testing.T) {
			r := startRegistry(t, c.secure, c.guard)
			image := makeImage(t, "linux/amd64", what)
			r.push(t, "private", image)
			add := []string{lighter, "add", "docker://" + r.host + "/private:1", "private/" + what + ":1"}
			refused := run(t, []string{"DOCKER_CONFIG=" + t.TempDir()}, add...)
			refused.bad(t, 1, r.host)
			// Credentials for another registry are not used.
			run(t, dockerConfig(t, "127.0.0.1:1", c.login), add...).bad(t, 1, r.host)
			before := len(tokenServer.requests())
			added := run(t, dockerConfig(t, r.host, c.login), add...)
			if added.code != 0 || !strings.Contains(added.stdout, digestOf(t, image)+" linux/amd64 ready") {
				t.Errorf("add with the credentials: exit %d, want 0 and a ready image: %s%s", added.code, added.stdout,
					added.stderr)
			}
			// Requests without credentials do not count: by them the hub finds out whether it can
			// read the layers again later.
			requests := slices.DeleteFunc(slices.Clone(tokenServer.requests()[before:]), func(req string) bool {
				return req == "GET /token "
			})
			if (len(requests) > 0) != (c.method != "") ||
				len(requests) > 0 && !strings.HasPrefix(requests[0], c.method+" ") {
				t.Errorf("requests for a token: got %q, want the method %q", requests, c.method)
			}
			wantNoSecret(t, refused.stderr, added.stdout, added.stderr)
		})
	}
}

// A registry may redirect the hub to another host for blobs, and name another host for tokens. The
// host of the blobs gets no credentials. The host of the tokens gets the password by HTTPS. Nothing
// is sent unencrypted to another machine.
func TestCredentialsStayWithTheirRegistry(t *testing.T) {
	blobHost, foreignHost := &witness{}, &witness{next: http.HandlerFunc(tokens)}
	elsewhere := "http://" + serve(t, "127.0.0.2", plainHTTP, blobHost)
	unencrypted := "http://" + serve(t, foreignIP, plainHTTP, foreignHost)
	_, port, _ := strings.Cut(unencrypted, foreignIP)
	unencryptedTokens := "http://" + foreignName + port + "/token"
	_, port, _ = strings.Cut(serve(t, "127.0.0.1", withTLS, http.HandlerFunc(tokens)), ":")
	tokenServer := "https://" + nearName + ":" + port + "/token"
	to := func(where string) func() string { return func() string { return where } }
	for what, c := range map[string]struct {
		guard  func(http.Handler) http.Handler
		secure bool
		want   string // a part of the error; empty: the image is added
	}{
		"blobs elsewhere": {func(h http.Handler) http.Handler { return wantBasic(redirectBlobs(to(elsewhere))(h)) },
			plainHTTP, ""},
		"tokens elsewhere": {wantBearer(tokenServer), withTLS, ""},
		"blobs unencrypted": {func(h http.Handler) http.Handler { return wantBasic(redirectBlobs(to(unencrypted))(h)) },
			withTLS, "plain HTTP"},
		"tokens unencrypted": {wantBearer(unencryptedTokens), plainHTTP, "plain HTTP"},
		"tokens from https":  {wantBearer(unencryptedTokens), withTLS, "use https"},
	} {
		t.Run(what, func(t *testing.T) {
			r := startRegistry(t, c.secure, c.guard)
			blobHost.next = r.back
			image := makeImage(t, "linux/amd64", what)
			r.push(t, "private", image)
			name := strings.ReplaceAll(what, " ", "-") + ":1"
			added := run(t, dockerConfig(t, r.host, password()), lighter, "add", "docker://"+r.host+"/private:1", name)
			if c.want == "" && added.code != 0 {
				t.Errorf("add: exit %d, want 0: %s", added.code, added.stderr)
			}
			if c.want != "" && (added.code != 1 || !strings.Contains(added.stderr, c.want)) {
				t.Errorf("add: exit %d, want 1 and an error with %q: %s", added.code, c.want, added.stderr)
			}
			wantNoSecret(t, added.stdout, added.stderr)
		})
	}
	requests := blobHost.requests()
	if len(requests) == 0 {
		t.Error("the host of the blobs got no request")
	}
	for _, request := range requests {
		if !strings.HasSuffix(request, " ") {
			t.Errorf("the host of the blobs got credentials: %s", request)
		}
	}
	if requests := foreignHost.requests(); len(requests) > 0 {
		t.Errorf("unencrypted requests to another machine: got %q, want none", requests)
	}
}
