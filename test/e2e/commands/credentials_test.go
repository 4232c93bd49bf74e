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

// secrets returns the texts that only a registry may see.
func secrets() []string {
	return []string{thePassword, theIdentityToken, theRegistryToken, theSignature,
		base64.StdEncoding.EncodeToString([]byte(theUser + ":" + thePassword))}
}

// dockerConfig writes docker's configuration, and returns the environment for commands.
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

func password() map[string]string {
	return map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(theUser + ":" + thePassword))}
}

// kept fails the test if a secret is in the hub's files or log, or in the output of commands.
func kept(t *testing.T, said ...string) {
	t.Helper()
	said = append(said, good(t, lighter, "images", "--json"))
	look := func(where string, b []byte) {
		for _, secret := range secrets() {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s has %q", where, secret)
			}
		}
	}
	look("the output of commands", []byte(strings.Join(said, "\n")))
	files := 0
	err := filepath.WalkDir(filepath.Dir(hubRoot), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		look(path, b)
		files++
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("searched %d files of the hub, %v", files, err)
	}
}

func TestCredentialsOfDocker(t *testing.T) {
	server := &witness{next: http.HandlerFunc(tokens)}
	_, port, _ := strings.Cut(serve(t, "127.0.0.1", withTLS, server), ":")
	bearer := wantBearer("https://" + nearName + ":" + port + "/token")
	for what, c := range map[string]struct {
		guard  func(http.Handler) http.Handler
		login  map[string]string
		secure bool
		method string // of the token request; empty: no token is needed
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
			before := len(server.saw())
			taken := run(t, dockerConfig(t, r.host, c.login), add...)
			if taken.code != 0 || !strings.Contains(taken.stdout, digestOf(t, image)+" linux/amd64 ready") {
				t.Errorf("exit %d: %s%s", taken.code, taken.stdout, taken.stderr)
			}
			// Without credentials the hub asks whether it can read the layers again later.
			asked := slices.DeleteFunc(slices.Clone(server.saw()[before:]), func(req string) bool {
				return req == "GET /token "
			})
			if (len(asked) > 0) != (c.method != "") || len(asked) > 0 && !strings.HasPrefix(asked[0], c.method+" ") {
				t.Errorf("token requests: %q", asked)
			}
			kept(t, refused.stderr, taken.stdout, taken.stderr)
		})
	}
}

// A registry may redirect the hub to other hosts for blobs and tokens. The password is not sent
// there, and nothing is sent unencrypted to another machine.
func TestCredentialsStayWithTheirRegistry(t *testing.T) {
	store, leak := &witness{}, &witness{next: http.HandlerFunc(tokens)}
	elsewhere := "http://" + serve(t, "127.0.0.2", plainHTTP, store)
	unencrypted := "http://" + serve(t, foreignIP, plainHTTP, leak)
	_, port, _ := strings.Cut(unencrypted, foreignIP)
	unencryptedTokens := "http://" + foreignName + port + "/token"
	_, port, _ = strings.Cut(serve(t, "127.0.0.1", withTLS, http.HandlerFunc(tokens)), ":")
	tokenServer := "https://" + nearName + ":" + port + "/token"
	to := func(where string) func() string { return func() string { return where } }
	for what, c := range map[string]struct {
		guard  func(http.Handler) http.Handler
		secure bool
		want   string // of the error
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
			store.next = r.back
			image := makeImage(t, "linux/amd64", what)
			r.push(t, "private", image)
			name := strings.ReplaceAll(what, " ", "-") + ":1"
			taken := run(t, dockerConfig(t, r.host, password()), lighter, "add", "docker://"+r.host+"/private:1", name)
			if c.want == "" && taken.code != 0 {
				t.Errorf("exit %d: %s", taken.code, taken.stderr)
			}
			if c.want != "" && (taken.code != 1 || !strings.Contains(taken.stderr, c.want)) {
				t.Errorf("exit %d: %s", taken.code, taken.stderr)
			}
			kept(t, taken.stdout, taken.stderr)
		})
	}
	seen := store.saw()
	if len(seen) == 0 {
		t.Error("the other host got no request for blobs")
	}
	for _, request := range seen {
		if !strings.HasSuffix(request, " ") {
			t.Errorf("the other host got %s", request)
		}
	}
	if seen := leak.saw(); len(seen) > 0 {
		t.Errorf("sent unencrypted: %q", seen)
	}
}
